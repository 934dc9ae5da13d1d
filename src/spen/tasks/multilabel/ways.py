"""Every way to learn one energy over label sets: a name, an objective, and how its descent is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from spen.tasks.multilabel.losses import F1AndLog, hamming, soft_f1


@dataclass(frozen=True, kw_only=True)
class Way:
    """``objective(log_weight, pairs)`` builds the objective; ``gradient`` says how its descent is differentiated."""

    summary: str
    objective: Callable[[float, bool], Objective]
    gradient: Callable[[], GradientStrategy] = Exact
    converges: bool = False
    """The descent must reach its minimum: many steps and a stopping rule."""
    learning_rate: float | None = None
    """A smaller rate than the recipe's, for objectives that would tear F apart."""


def on_present(loss: Loss, pairs: bool) -> Loss:
    """A loss over label probabilities (B, L); with ``pairs`` the outputs are (B, L, 2) over (absent, present)."""
    return (lambda y, target: loss(y[..., 1], target)) if pairs else loss


def as_pairs(target: Tensor) -> Tensor:  # (B, L) -> (B, L, 2)
    """The corner of the product of simplices that a label set is."""
    return torch.stack([1 - target, target], -1)


def _truth(pairs: bool) -> Callable[[Tensor], Tensor] | None:
    return as_pairs if pairs else None


def _task(weight: float, pairs: bool) -> Loss:
    return on_present(F1AndLog(weight), pairs)


def _f1(y: Tensor, target: Tensor) -> Tensor:
    return 1 - soft_f1(y, target)


# A density over the box that peaks at y = m/2 for absent labels wants scores near −2/m: with this margin about those
# that the log loss has left in F, so that fitting the density does not begin by undoing the pretraining.
_MARGIN = 0.2

WAYS: dict[str, Way] = {
    "feedforward": Way(
        summary="Init(F(x)) alone, log loss",
        objective=lambda w, p: Feedforward(on_present(binary_log_loss, p)),
    ),
    "feedforward-f1": Way(
        summary="Init(F(x)) alone, soft F1",
        objective=lambda w, p: Feedforward(_task(w, p)),
    ),
    "end-to-end": Way(
        summary="back-propagation through the descent, soft F1 on every iterate",
        objective=lambda w, p: EndToEnd(_task(w, p)),
    ),
    "last-iterate": Way(
        summary="the same with the loss on the last iterate alone",
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
    ),
    "truncated": Way(
        summary="the last iterate, differentiated through the last step alone",
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
        gradient=lambda: Truncated(1),
    ),
    "implicit": Way(
        summary="the implicit function theorem at the minimum",
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
        gradient=lambda: Implicit(iterations=100, tolerance=1e-3),
        converges=True,
    ),
    "structured-hinge": Way(
        summary="structured SVM, Δ the Hamming distance",
        objective=lambda w, p: StructuredHinge(on_present(hamming, p), truth=_truth(p)),
    ),
    "deep-value": Way(
        summary="deep value network: sigmoid(−E) is the F1 of y",
        objective=lambda w, p: DeepValue(on_present(_f1, p), truth=_truth(p)),
    ),
    "contrastive-langevin": Way(
        summary="contrastive divergence, ten Langevin steps from the truth",
        objective=lambda w, p: ContrastiveDivergence(Langevin(10, 0.05), margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "contrastive-hamiltonian": Way(
        summary="contrastive divergence, one Hamiltonian move of ten leapfrog steps",
        objective=lambda w, p: ContrastiveDivergence(Hamiltonian(1, 0.1, leapfrog=10), margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "score-matching": Way(
        summary="denoising score matching in logits",
        objective=lambda w, p: DenoisingScoreMatching(1.0, margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "inference-network": Way(
        summary="Init(F(x)) plays against the energy, anchored by the log loss",
        objective=lambda w, p: InferenceNetwork(
            on_present(hamming, p), anchor=1.0, anchor_loss=on_present(binary_log_loss, p), truth=_truth(p)
        ),
    ),
    "direct-loss": Way(
        summary="direct loss minimisation, Δ the soft F1 cost, away from worse answers",
        objective=lambda w, p: DirectLoss(on_present(soft_f1, p), epsilon=10.0),
    ),
}
"""Ways by the names that recipes and ``spen compare`` use."""
