"""F(x) for label sets: an MLP that returns its last hidden layer and a score for every label."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


class LabelFeatures(NamedTuple):
    """The output of F."""

    hidden: Tensor  # (B, H)
    scores: Tensor  # (B, L)


class UnitRows(nn.Module):
    """c · x / ‖x‖: documents of any length on one sphere of radius c."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        if not radius > 0:
            raise ValueError(f"the radius must be positive, not {radius}")
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        return self.radius * x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)

    def extra_repr(self) -> str:
        return f"radius={self.radius}"


class Standardize(nn.Module):
    """(x − mean) / deviation, with the moments of the training inputs that ``measure`` sets; before it, x unchanged."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))

    def measure(self, mean: Tensor, variance: Tensor) -> None:
        """Set the moments. The deviation of a constant input is 1, so the input becomes 0."""
        deviation = variance.clamp_min(0).sqrt()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.where(deviation > 1e-12 * (1 + mean.abs()), torch.ones_like(deviation)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


class LabelMLP(nn.Module):
    """x → (dropout → linear → ReLU)… → h → dropout → linear → s.

    ``standardize`` begins with `Standardize`; ``radius`` scales the rows of x to this norm. ``input_dropout`` drops
    inputs, ``dropout`` hidden units: with few examples they prevent overfitting.
    """

    def __init__(
        self,
        inputs: int,
        labels: int,
        hidden: Sequence[int] = (400,),
        *,
        radius: float | None = None,
        standardize: bool = False,
        input_dropout: float = 0.0,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("F needs at least one hidden layer")
        layers: list[nn.Module] = [Standardize(inputs)] if standardize else []
        layers += [] if radius is None else [UnitRows(radius)]
        layers.append(nn.Dropout(input_dropout))
        for k, (a, b) in enumerate(pairwise([inputs, *hidden])):
            layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if k + 1 < len(hidden) else [])]
        self.body = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden[-1], labels)

    def forward(self, x: Tensor) -> LabelFeatures:
        hidden = self.dropout(self.body(x))
        return LabelFeatures(hidden, self.head(hidden))


def scores_of(features: LabelFeatures) -> Tensor:
    """s(x), for `Linear`."""
    return features.scores


class ScoresAsLogits(nn.Module):
    """Init: the scores are the logits the descent starts from; with ``pairs``, logits (0, s) of (absent, present)."""

    def __init__(self, *, pairs: bool = False) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, features: LabelFeatures) -> Tensor:
        scores = features.scores
        return torch.stack([torch.zeros_like(scores), scores], -1) if self.pairs else scores
