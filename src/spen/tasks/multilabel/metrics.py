"""F1 of label sets, averaged over examples, over all decisions (micro) and over labels (macro).

    example  (1/N) Σ_n 2|ŷ_n ∩ y_n| / (|ŷ_n| + |y_n|)      that of the published figures
    micro    2 Σ_n |ŷ_n ∩ y_n| / Σ_n (|ŷ_n| + |y_n|)
    macro    the mean over labels l of 2 TP_l / (2 TP_l + FP_l + FN_l)

A ratio 0/0 counts as 0, as by default in scikit-learn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

THRESHOLDS = tuple(1 / (1 + math.exp(-logit / 4)) for logit in range(-40, 17))
"""Candidates for the threshold, evenly spaced in logits: 0.00005 … 0.98. Objectives that fit a density preserve the
order of the labels but not their scale, so the best threshold may be far from one half."""


class Scores(NamedTuple):
    """F1 in percent."""

    example: float
    micro: float
    macro: float


def example_f1(chosen: Tensor, truth: Tensor) -> Tensor:  # (N, L), (N, L) -> (N,)
    """2|ŷ ∩ y| / (|ŷ| + |y|) of each example."""
    return _ratio((chosen & truth).sum(1), chosen.sum(1) + truth.sum(1))


def scores(y: Tensor, truth: Tensor, threshold: float) -> Scores:  # (N, L), (N, L)
    """The three F1 scores, in percent, of the labels with y > threshold."""
    chosen, gold = y > threshold, truth > 0.5
    both, sizes = chosen & gold, chosen.sum(0) + gold.sum(0)
    return Scores(
        example=100 * float(example_f1(chosen, gold).mean()),
        micro=100 * float(_ratio(both.sum(), sizes.sum())),
        macro=100 * float(_ratio(both.sum(0), sizes).mean()),
    )


def tune_threshold(y: Tensor, truth: Tensor) -> float:
    """The threshold with the best example-averaged F1, for development data."""
    return max(THRESHOLDS, key=lambda threshold: scores(y, truth, threshold).example)


class TunedExampleF1(Metric):
    """Example-averaged F1 in percent at the best threshold for the data seen: the development score of training."""

    higher_is_better = True
    full_state_update = False

    totals: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("totals", torch.zeros(len(THRESHOLDS), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, y: Tensor, truth: Tensor) -> None:
        y = y[..., 1] if y.dim() == 3 else y  # pairs (absent, present)
        gold = truth > 0.5
        for i, threshold in enumerate(THRESHOLDS):
            self.totals[i] += example_f1(y > threshold, gold).double().sum()
        self.count += len(y)

    def compute(self) -> Tensor:
        return 100 * self.totals.max() / self.count


def _ratio(both: Tensor, sizes: Tensor) -> Tensor:
    return 2 * both.double() / sizes.double().clamp_min(1)
