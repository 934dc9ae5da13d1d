"""Σ max_y [Δ(y, y*) − E(y) + E(y*)]_+: the structured SVM of the first SPEN paper (Eq. 3 and 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spen.arguments import require_function
from spen.energies import Energy
from spen.energies.compose import one_per_example
from spen.model import SPEN
from spen.objectives.losses import per_example
from spen.objectives.mismatch import Once, refuse_mismatch
from spen.objectives.targets import point_of, require_truth
from spen.protocols import Features, Loss, Objective


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


class StructuredHinge(Objective):
    """[Δ(ŷ, y*) − E(ŷ) + E(y*)]_+ with ŷ from loss-augmented inference by the model's own minimiser.

    ``loss`` is Δ, per example and differentiable in y. ``truth`` turns the target into a point of the domain
    (default: the target is one). The gradient reaches E and F at the two points, not through the search for ŷ.
    """

    def __init__(self, loss: Loss, *, truth: Any = None) -> None:
        require_function(loss, "loss", "loss(y, target)")
        require_truth(truth)
        self.loss = loss
        self.truth = truth
        self._once = Once()

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        refuse_mismatch(model, target, self._once, self.loss)
        features = model.features(x)
        violating = self.search(model, features, target)
        truth = point_of(target, self.truth, violating.dtype)
        margin = self._cost(violating, target) - model.energy(violating, features)
        return (margin + model.energy(truth, features)).clamp_min(0).mean()

    def search(self, model: SPEN, features: Features, target: Any) -> Tensor:
        """argmin_y E(y) − Δ(y, y*), by descent."""
        with torch.no_grad():
            augmented = LossAugmented(model.energy, self._cost)
            return model.minimizer(augmented, (features, target), model.init(features)).output

    def _cost(self, y: Tensor, target: Any) -> Tensor:
        return per_example(self.loss, y, target, "the structured hinge")
