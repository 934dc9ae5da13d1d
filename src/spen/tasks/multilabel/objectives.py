"""The objective and the gradient strategy of each way to learn an energy over label sets."""

from __future__ import annotations

import torch
from torch import Tensor

from spen.gradients import Exact, Implicit, Truncated
from spen.objectives import (
    ContrastiveDivergence,
    DeepValue,
    DenoisingScoreMatching,
    DirectLoss,
    EndToEnd,
    Feedforward,
    Hamiltonian,
    InferenceNetwork,
    Langevin,
    StructuredHinge,
    binary_log_loss,
)
from spen.protocols import GradientStrategy, Loss, Objective
from spen.tasks.multilabel.losses import F1AndLog, hamming, relaxed_f1, soft_f1

# A density over the box that peaks at y = m/2 for absent labels wants scores near −2/m: with this margin about those
# that the log loss has left in F, so that fitting the density does not begin by undoing the pretraining.
_MARGIN = 0.2


def build_objective(way: str, log_weight: float, pairs: bool) -> Objective:
    """The objective of a way; with ``pairs`` the outputs are (B, L, 2) over (absent, present)."""
    task, log, distance = (on_present(loss, pairs) for loss in (F1AndLog(log_weight), binary_log_loss, hamming))
    truth = as_pairs if pairs else None
    match way:
        case "feedforward":
            return Feedforward(log)
        case "feedforward-f1":
            return Feedforward(task)
        case "end-to-end":
            return EndToEnd(task)
        case "last-iterate" | "truncated" | "implicit":
            return EndToEnd(task, weights="last")
        case "structured-hinge":
            return StructuredHinge(distance, truth=truth)
        case "deep-value":
            return DeepValue(on_present(relaxed_f1, pairs), truth=truth)
        case "contrastive-langevin":
            return ContrastiveDivergence(Langevin(10, 0.05), margin=_MARGIN, truth=truth)
        case "contrastive-hamiltonian":
            return ContrastiveDivergence(Hamiltonian(1, 0.1, leapfrog=10), margin=_MARGIN, truth=truth)
        case "score-matching":
            return DenoisingScoreMatching(1.0, margin=_MARGIN, truth=truth)
        case "inference-network":
            return InferenceNetwork(distance, anchor=1.0, anchor_loss=log, truth=truth)
        case _:
            return DirectLoss(on_present(soft_f1, pairs), epsilon=10.0)


def build_gradient(way: str) -> GradientStrategy:
    """How a way differentiates its descent."""
    if way == "truncated":
        return Truncated(1)
    return Implicit(iterations=100, tolerance=1e-3) if way == "implicit" else Exact()


def on_present(loss: Loss, pairs: bool) -> Loss:
    """A loss over label probabilities (B, L); with ``pairs`` the outputs are (B, L, 2) over (absent, present)."""
    return (lambda y, target: loss(y[..., 1], target)) if pairs else loss


def as_pairs(target: Tensor) -> Tensor:  # (B, L) -> (B, L, 2)
    """A label set as a corner of the product of simplices."""
    return torch.stack([1 - target, target], -1)
