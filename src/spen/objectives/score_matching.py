"""½‖∇E‖² − tr ∇²E: fit the slope of log p and never its constant (Sec. 2.2; Hyvärinen 2005, Vincent 2011)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spen.descent.potential import Potential
from spen.gradients.second_order import Graph, NotTwiceDifferentiable
from spen.model import SPEN
from spen.objectives.checks import require_truth
from spen.objectives.coordinates import checked_margin, in_coordinates
from spen.protocols import Objective
from spen.tensors import flat


class ScoreMatching(Objective):
    """mean ½‖∇U(z*)‖² − tr ∇²U(z*), U the energy in free coordinates of the domain (over ℝⁿ: the energy itself).

    ``probes`` random directions v estimate the trace by vᵀ∇²U v; None computes it exactly, one backward pass per
    coordinate. ``margin`` moves a truth on the boundary inside, where it has coordinates. ``truth`` turns the target
    into a point of the domain. Targets that sit on few points have no smooth density: use the denoising form.
    """

    def __init__(self, *, probes: int | None = 1, margin: float = 0.05, truth: Any = None) -> None:
        require_truth(truth)
        if probes is not None and probes < 1:
            raise ValueError(f"the trace needs at least one probe, not {probes}; None computes it exactly")
        self.probes, self.margin, self.truth = probes, checked_margin(margin), truth

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        _, potential, z = in_coordinates(model, model.features(x), target, self.truth, self.margin)
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            slope, _ = potential.differentiable_gradient(point, _inspect)
            bends = [flat(row * v).sum(1) for row, v in self._products(slope, point)]
        trace = sum(bends[1:], bends[0]) / (self.probes or 1)
        return (0.5 * flat(slope.square()).sum(1) - trace).mean()

    def _products(self, slope: Tensor, point: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self.probes is None:
            units = torch.eye(slope[0].numel(), dtype=slope.dtype, device=slope.device)
            directions = [unit.view(1, *slope.shape[1:]).expand_as(slope) for unit in units]
        else:
            directions = [torch.randn_like(slope).sign() for _ in range(self.probes)]
        return [(_curve(slope, point, v), v) for v in directions]


class DenoisingScoreMatching(Objective):
    """mean ½‖σ∇U(z* + σε) − ε‖², ε ~ N(0, 1): point from the disturbed truth back to the truth.

    It fits the density of the truth blurred by ``noise`` σ, measured in free coordinates of the domain. Only first
    derivatives in y enter the value.
    """

    def __init__(self, noise: float = 0.5, *, margin: float = 0.05, truth: Any = None) -> None:
        require_truth(truth)
        if not noise > 0:
            raise ValueError(f"the noise must be positive, not {noise}")
        self.noise, self.margin, self.truth = noise, checked_margin(margin), truth

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        _, potential, z = in_coordinates(model, model.features(x), target, self.truth, self.margin)
        epsilon = torch.randn_like(z)
        slope, _ = potential.differentiable_gradient((z + self.noise * epsilon).detach(), _inspect)
        return 0.5 * flat((self.noise * slope - epsilon).square()).sum(1).mean()


def _inspect(potential: Potential, energies: Tensor, point: Tensor) -> None:
    """Refuse an energy whose gradient cannot be differentiated: autograd would leave such a term out."""
    known = [point, *potential.feature_tensors(), *potential.parameters()]
    if names := Graph.of(energies, known).once_differentiable:
        raise NotTwiceDifferentiable(
            f"score matching differentiates dE/dy, and {' or '.join(names)} in the energy can be differentiated only "
            "once: write it with differentiable operations, or train by another objective"
        )


def _curve(slope: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    # An energy that is linear in y has a slope that does not depend on y.
    if not slope.requires_grad:
        return torch.zeros_like(slope)
    (product,) = torch.autograd.grad(slope, point, direction, create_graph=True, allow_unused=True)
    return torch.zeros_like(slope) if product is None else product
