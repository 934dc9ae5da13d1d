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

    objective: Callable[[float, bool], Objective]
    gradient: Callable[[], GradientStrategy] = Exact
    converges: bool = False
    """The descent must reach its minimum: many steps and a stopping rule."""
    learning_rate: float | None = 1e-3
    """Smaller for objectives that would tear F apart; None: the rate of pretraining."""
    decay_to: float = 0.02


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
        objective=lambda w, p: Feedforward(on_present(binary_log_loss, p)),
        learning_rate=None,  # it is pretraining, gone on with
        decay_to=1.0,
    ),
    "feedforward-f1": Way(
        objective=lambda w, p: Feedforward(_task(w, p)),
    ),
    "end-to-end": Way(
        objective=lambda w, p: EndToEnd(_task(w, p)),
    ),
    "last-iterate": Way(
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
    ),
    "truncated": Way(
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
        gradient=lambda: Truncated(1),
    ),
    "implicit": Way(
        objective=lambda w, p: EndToEnd(_task(w, p), weights="last"),
        gradient=lambda: Implicit(iterations=100, tolerance=1e-3),
        converges=True,
    ),
    "structured-hinge": Way(
        objective=lambda w, p: StructuredHinge(on_present(hamming, p), truth=_truth(p)),
    ),
    "deep-value": Way(
        objective=lambda w, p: DeepValue(on_present(_f1, p), truth=_truth(p)),
    ),
    "contrastive-langevin": Way(
        objective=lambda w, p: ContrastiveDivergence(Langevin(10, 0.05), margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "contrastive-hamiltonian": Way(
        objective=lambda w, p: ContrastiveDivergence(Hamiltonian(1, 0.1, leapfrog=10), margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "score-matching": Way(
        objective=lambda w, p: DenoisingScoreMatching(1.0, margin=_MARGIN, truth=_truth(p)),
        learning_rate=1e-4,
    ),
    "inference-network": Way(
        objective=lambda w, p: InferenceNetwork(
            on_present(hamming, p), anchor=1.0, anchor_loss=on_present(binary_log_loss, p), truth=_truth(p)
        ),
    ),
    "direct-loss": Way(
        objective=lambda w, p: DirectLoss(on_present(soft_f1, p), epsilon=10.0),
    ),
}
"""Ways by the names that recipes and ``spen compare`` use; `recipes.WAYS` says each in a sentence."""
