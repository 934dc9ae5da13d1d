"""∇Δ(ŷ, y*) ≈ (∇E(y_ε) − ∇E(ŷ)) / ε: direct loss minimisation (McAllester, Hazan and Keshet 2010)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from spen.arguments import require_function
from spen.model import SPEN
from spen.objectives.losses import per_example
from spen.objectives.mismatch import Once, refuse_mismatch
from spen.objectives.structured_hinge import LossAugmented
from spen.protocols import Features, Loss, Objective

Direction = Literal["towards", "away"]


class DirectLoss(Objective):
    """(E(y_ε) − E(ŷ)) / ε with ŷ = argmin E and y_ε = argmin E + εΔ, both by the model's minimiser and held fixed.

    M(ε) = min_y E(y) + εΔ(y) has dM/dε = Δ(ŷ) at 0, and the gradient of M(ε) is that of E at y_ε; so the
    gradient of this number tends to that of Δ(ŷ) as ε → 0. ``direction="towards"`` compares ŷ with a better answer
    (+ε), ``"away"`` with a worse one (−ε), which is steadier far from convergence. ``loss`` is Δ, per example and
    differentiable in y. The value itself is no loss: its gradient is what counts.
    """

    def __init__(self, loss: Loss, *, epsilon: float = 1.0, direction: Direction = "away") -> None:
        require_function(loss, "loss", "loss(y, target)")
        if not epsilon > 0:
            raise ValueError(f"epsilon must be positive, not {epsilon}")
        if direction not in ("towards", "away"):
            raise ValueError(f'direction must be "towards" or "away", not {direction!r}')
        self.loss = loss
        self._once = Once()
        self.epsilon = epsilon if direction == "towards" else -epsilon

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        refuse_mismatch(model, target, self._once, self.loss)
        features = model.features(x)
        answer, moved = self.answers(model, features, target)
        return (model.energy(moved, features) - model.energy(answer, features)).mean() / self.epsilon

    def answers(self, model: SPEN, features: Features, target: Any) -> tuple[Tensor, Tensor]:
        """(ŷ, y_ε), from the same start."""
        with torch.no_grad():
            start = model.init(features)
            perturbed = LossAugmented(model.energy, self._bonus)
            answer = model.minimizer(model.energy, features, start).output
            return answer, model.minimizer(perturbed, (features, target), start).output

    def _bonus(self, y: Tensor, target: Any) -> Tensor:
        return -self.epsilon * per_example(self.loss, y, target, "direct loss minimisation")
