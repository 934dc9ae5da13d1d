"""Objectives that compare the energies of two answers: structured hinge, inference network, direct loss."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from spen.arguments import require_function
from spen.descent.potential import Potential
from spen.energies import Energy
from spen.energies.compose import one_per_example
from spen.model import SPEN
from spen.objectives.checks import LossObjective, point_of, require_truth
from spen.protocols import Features, Loss
from spen.tensors import flat


class LossAugmented(Energy):
    """E(y; F) − Δ(y, y*): what a margin violation minimises (Eq. 4). Its features are the pair (F, y*)."""

    def __init__(self, energy: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.energy = energy
        self.loss = loss

    def forward(self, y: Tensor, features: Features) -> Tensor:
        inner, target = features
        value = one_per_example(self.energy(y, inner), y, type(self.energy).__name__)
        return value - self.loss(y, target)


class StructuredHinge(LossObjective):
    """[Δ(ŷ, y*) − E(ŷ) + E(y*)]_+ with ŷ = argmin E − Δ, the structured SVM of the first SPEN paper (Eq. 3 and 4).

    ŷ comes from loss-augmented inference by the model's own minimiser. ``loss`` is Δ, per example and differentiable in
    y. ``truth`` turns the target into a point of the domain (default: the target is one). The gradient reaches E and F
    at the two points, not through the search for ŷ.
    """

    def __init__(self, loss: Loss, *, truth: Any = None) -> None:
        super().__init__(loss)
        require_truth(truth)
        self.truth = truth

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target)
        features = model.features(x)
        violating = self.search(model, features, target)
        truth = point_of(target, self.truth, violating.dtype)
        margin = self.cost(violating, target) - model.energy(violating, features)
        return (margin + model.energy(truth, features)).clamp_min(0).mean()

    def search(self, model: SPEN, features: Features, target: Any) -> Tensor:
        """argmin_y E(y) − Δ(y, y*), by descent."""
        with torch.no_grad():
            augmented = LossAugmented(model.energy, self.cost)
            return model.minimizer(augmented, (features, target), model.init(features)).output


class InferenceNetwork(LossObjective):
    """min_E max_A [Δ(A(x), y*) − E(A(x)) + E(y*)]_+: A = Init∘F learns to minimise (Tu and Gimpel 2018).

    The energy is trained on [Δ(A) − E(A) + E(y*)]_+ with A(x) detached. A is trained on ⟨∇_y[E − Δ](A), A(x)⟩ with
    the gradient detached, whose gradient is that of E(A(x)) − Δ(A(x), y*). One backward pass updates both, each
    against the other. ``loss`` is Δ, per example and differentiable in y; ``anchor`` · ℓ(A(x), y*) keeps A near the
    truth while the energy is still poor (``anchor_loss``, default Δ). ``player`` leaves one term out: "network" alone
    tunes A to a finished energy, without Δ.

    Development data is scored on A(x): no descent is needed at the end.
    """

    def __init__(
        self,
        loss: Loss,
        *,
        anchor: float = 0.0,
        anchor_loss: Loss | None = None,
        truth: Any = None,
        player: Literal["both", "energy", "network"] = "both",
    ) -> None:
        super().__init__(loss)
        if anchor_loss is not None:
            require_function(anchor_loss, "anchor_loss", "anchor_loss(y, target)")
        require_truth(truth)
        if anchor < 0:
            raise ValueError(f"the anchor's weight must not be negative, not {anchor}")
        if player not in ("both", "energy", "network"):
            raise ValueError(f'player must be "both", "energy" or "network", not {player!r}')
        self.anchor, self.truth, self.player = anchor, truth, player
        self.anchor_loss = loss if anchor_loss is None else anchor_loss

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target, self.anchor_loss)
        features = model.features(x)
        domain = model.minimizer.domain
        answer = domain.output(domain.enter(model.init(features)))
        total = answer.new_zeros(())
        if self.player != "network":
            total = total + self._energy_term(model, features, answer.detach(), target)
        if self.player != "energy":
            total = total + self._network_term(model, features, answer, target)
        if self.anchor:
            total = total + self.anchor * self.anchor_loss(answer, target).mean()
        return total

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)

    def _energy_term(self, model: SPEN, features: Any, answer: Tensor, target: Any) -> Tensor:
        truth = point_of(target, self.truth, answer.dtype)
        margin = self.cost(answer, target) - model.energy(answer, features) + model.energy(truth, features)
        return margin.clamp_min(0).mean()

    def _network_term(self, model: SPEN, features: Any, answer: Tensor, target: Any) -> Tensor:
        if self.player == "network":
            potential = Potential.of(model.energy, features)
        else:
            potential = Potential.of(LossAugmented(model.energy, self.cost), (features, target))
        slope, _ = potential.detached().gradient(answer)
        return flat(slope * answer).sum(1).mean()


class DirectLoss(LossObjective):
    """(E(y_ε) − E(ŷ)) / ε with ŷ = argmin E and y_ε = argmin E + εΔ (McAllester, Hazan and Keshet 2010).

    Both come from the model's minimiser and are detached. M(ε) = min_y E(y) + εΔ(y) has dM/dε = Δ(ŷ) at 0, and the
    gradient of M(ε) is that of E at y_ε; so the gradient of this number tends to that of Δ(ŷ) as ε → 0.
    ``direction="towards"`` compares ŷ with a better answer (+ε), ``"away"`` with a worse one (−ε), which is steadier
    far from convergence. ``loss`` is Δ, per example and differentiable in y. The value is no loss: only its gradient
    is meaningful.
    """

    def __init__(self, loss: Loss, *, epsilon: float = 1.0, direction: Literal["towards", "away"] = "away") -> None:
        super().__init__(loss)
        if not epsilon > 0:
            raise ValueError(f"epsilon must be positive, not {epsilon}")
        if direction not in ("towards", "away"):
            raise ValueError(f'direction must be "towards" or "away", not {direction!r}')
        self.epsilon = epsilon if direction == "towards" else -epsilon

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target)
        features = model.features(x)
        answer, moved = self.answers(model, features, target)
        return (model.energy(moved, features) - model.energy(answer, features)).mean() / self.epsilon

    def answers(self, model: SPEN, features: Features, target: Any) -> tuple[Tensor, Tensor]:
        """(ŷ, y_ε), from the same start."""
        with torch.no_grad():
            start = model.init(features)
            perturbed = LossAugmented(model.energy, lambda y, target: -self.epsilon * self.cost(y, target))
            answer = model.minimizer(model.energy, features, start).output
            return answer, model.minimizer(perturbed, (features, target), start).output
