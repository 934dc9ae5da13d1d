"""E(y) ≈ −v(y, y*): a value network fitted wherever the search may pass (Sec. 4; Gygli, Norouzi and Angelova 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.arguments import require_function
from spen.energies import Energy
from spen.energies.compose import one_per_example
from spen.model import SPEN
from spen.objectives.checks import Once, point_of, require_truth, type_of
from spen.protocols import Features, Loss, Objective
from spen.tensors import as_rows

Draw = Literal["truth", "inference", "adversarial", "mixed"]
Fit = Literal["squared", "cross_entropy"]


class Misfit(Energy):
    """−ℓ(E(y; F), v(y, y*)): low where the energy misjudges y. Its features are the pair (F, y*)."""

    def __init__(self, energy: nn.Module, value: Loss, fit: Fit) -> None:
        super().__init__()
        self.energy, self.value, self.fit = energy, value, fit

    def forward(self, y: Tensor, features: Features) -> Tensor:
        inner, target = features
        value = one_per_example(self.energy(y, inner), y, type(self.energy).__name__)
        return -misfit(value, self.value(y, target), self.fit)


def misfit(energy: Tensor, value: Tensor, fit: Fit) -> Tensor:  # (B,), (B,) -> (B,)
    """How far the energy is from the value: (E + v)², or the cross-entropy of v and sigmoid(−E)."""
    if fit == "squared":
        return (energy + value).square()
    return F.binary_cross_entropy_with_logits(-energy, value.to(energy.dtype), reduction="none")


LARGEST: dict[str, float] = {"squared": 10.0, "cross_entropy": 30.0}
"""|E| beyond which values in [0, 1] are out of reach: sigmoid(−30) is 1e-13."""


class DeepValue(Objective):
    """mean ℓ(E(y), v(y, y*)) over answers y drawn around the truth and along the search.

    ``value`` is v(y, y*) in [0, 1] per example, 1 for a perfect answer (1 − Δ for a cost Δ); it need not be
    differentiable unless "adversarial" answers are drawn. ``fit="squared"`` learns E = −v, ``"cross_entropy"``
    sigmoid(−E) = v as the authors do. ``draw`` lists where the answers come from, each of equal weight:

    ``truth``        y* itself.
    ``inference``    where the model's own descent ends.
    ``adversarial``  where the energy is most wrong: a descent of −ℓ from the same start.
    ``mixed``        on the segment between y* and the truth of another example, at a random place.

    ``truth`` turns the target into a point of the domain. No gradient passes through the search for answers. Energies
    must be of the size of values at the start: those of the first batch are looked at, and larger ones are refused.
    """

    def __init__(
        self,
        value: Loss,
        *,
        fit: Fit = "cross_entropy",
        draw: Sequence[Draw] = ("truth", "inference", "adversarial", "mixed"),
        truth: Any = None,
    ) -> None:
        require_function(value, "value", "value(y, target)")
        require_truth(truth)
        if fit not in ("squared", "cross_entropy"):
            raise ValueError(f'fit must be "squared" or "cross_entropy", not {fit!r}')
        unknown = [name for name in draw if name not in ("truth", "inference", "adversarial", "mixed")]
        if unknown or not draw:
            raise ValueError(f"draw must list truth, inference, adversarial or mixed, not {list(draw)}")
        self.value, self.fit, self.draw, self.truth = value, fit, tuple(draw), truth
        self._once = Once()

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        features = model.features(x)
        answers = [self.answers(name, model, features, target) for name in self.draw]
        name = type(model.energy).__name__
        energies = [one_per_example(model.energy(y, features), y, name) for y in answers]
        if not torch.compiler.is_compiling():
            self._once.check(model.energy, lambda: self._check_scale(torch.cat(energies)))
        losses = [
            misfit(energy, self._checked(y, target).detach(), self.fit).mean()
            for energy, y in zip(energies, answers, strict=True)
        ]
        return sum(losses[1:], losses[0]) / len(losses)

    def answers(self, name: Draw, model: SPEN, features: Features, target: Any) -> Tensor:
        """Answers of one kind, cut off from every parameter."""
        with torch.no_grad():
            if name == "inference":
                return model.minimizer(model.energy, features, model.init(features)).output
            if name == "adversarial":
                wrong = Misfit(model.energy, self._checked, self.fit)
                return model.minimizer(wrong, (features, target), model.init(features)).output
            truth = point_of(target, self.truth, type_of(model, features))
            if name == "truth":
                return truth
            other = truth[torch.randperm(len(truth), device=truth.device)]
            place = torch.rand(len(truth), device=truth.device, dtype=truth.dtype)
            return torch.lerp(truth, other, as_rows(place, truth))

    def _check_scale(self, energies: Tensor) -> None:
        size = float(energies.detach().abs().median()) if energies.numel() else 0.0
        if size > LARGEST[self.fit]:
            fitted = "−E" if self.fit == "squared" else "sigmoid(−E)"
            factor = 10.0 ** -math.ceil(math.log10(size))
            raise ValueError(
                f"DeepValue fits {fitted} to values in [0, 1], but the energies of the first batch are of size "
                f'{size:.3g} (at most {LARGEST[self.fit]:g} with fit="{self.fit}"): scale the energy by about '
                f"{factor:g}, Scaled(energy, {factor:g})"
            )

    def _checked(self, y: Tensor, target: Any) -> Tensor:
        value = self.value(y, target)
        if value.shape != (y.shape[0],):
            raise ValueError(
                f"a deep value network needs v per example, shape ({y.shape[0]},); the value has {tuple(value.shape)}"
            )
        return value
