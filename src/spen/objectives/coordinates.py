"""Free coordinates z of a domain, in which a density over y can be sampled and scored without constraints.

p(y) ∝ exp(−E(y))  ⇒  p(z) ∝ exp(−U(z)),  U(z) = E(y(z)) − log|dy/dz|
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.descent.potential import Potential
from spen.domains import Box, Reals, Simplex
from spen.energies import Energy
from spen.energies.compose import one_per_example
from spen.model import SPEN
from spen.objectives.checks import point_of, type_of
from spen.protocols import Domain, Features
from spen.tensors import flat


class Coordinates:
    """A smooth map from ℝⁿ onto the inside of a domain.

    ``Reals``    y = z.
    ``Box``      y = low + (high − low)·u, u = sigmoid(z), dy/dz = (high − low)·u(1 − u).
    ``Simplex``  y = softmax(z), dy/dz = Π y_k for K − 1 differences of z. The mean of z does not change y: it gets a
                 standard normal density of its own, so that chains cannot drift along it.
    """

    def __init__(self, domain: Domain) -> None:
        if not isinstance(domain, Reals | Box | Simplex):
            raise ValueError(
                f"{type(domain).__name__} has no free coordinates; densities are known for Reals, Box and Simplex"
            )
        self.domain = domain

    def enter(self, y: Tensor, margin: float) -> Tensor:
        """z of y, after moving y a fraction ``margin`` of the way to the middle (a corner has no coordinates)."""
        if isinstance(self.domain, Reals):
            return y
        if isinstance(self.domain, Box):
            if not self.domain.is_unit:
                low, high = self.domain.bounds(y)
                y = (y - low) / (high - low)
            return torch.logit(torch.lerp(y, torch.full_like(y, 0.5), margin))
        dim = self.domain.dim
        logs = torch.lerp(y, torch.full_like(y, 1 / y.shape[dim]), margin).log()
        return logs - logs.mean(dim, keepdim=True)

    def output(self, z: Tensor) -> Tensor:
        """y of z."""
        if isinstance(self.domain, Box):
            inside = torch.sigmoid(z)
            return inside if self.domain.is_unit else torch.lerp(*self.domain.bounds(z), inside)
        return torch.softmax(z, self.domain.dim) if isinstance(self.domain, Simplex) else z

    def log_volume(self, z: Tensor) -> Tensor:  # (B, …) -> (B,)
        """log|dy/dz|, up to a constant."""
        if isinstance(self.domain, Box):
            return flat(F.logsigmoid(z) + F.logsigmoid(-z)).sum(1)
        if isinstance(self.domain, Simplex):
            dim = self.domain.dim
            free = 0.5 * z.shape[dim] * z.mean(dim).square()
            return (torch.log_softmax(z, dim).sum(dim) - free).reshape(z.shape[0], -1).sum(1)
        return z.new_zeros(z.shape[0])


class InCoordinates(Energy):
    """U(z; F) = E(y(z); F) − log|dy/dz|. Wraps an energy."""

    def __init__(self, energy: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.energy = energy
        self.coordinates = coordinates

    def forward(self, y: Tensor, features: Features) -> Tensor:
        value = one_per_example(self.energy(self.coordinates.output(y), features), y, type(self.energy).__name__)
        return value - self.coordinates.log_volume(y)


def in_coordinates(
    model: SPEN, features: Features, target: Any, truth: Any, margin: float
) -> tuple[Coordinates, Potential, Tensor]:
    """The coordinates of the model's domain, U for these features, and the coordinates z* of the truth."""
    space = Coordinates(model.minimizer.domain)
    potential = Potential.of(InCoordinates(model.energy, space), features)
    return space, potential, space.enter(point_of(target, truth, type_of(model, features)), margin)


def checked_margin(margin: float) -> float:
    if not 0 <= margin < 1:
        raise ValueError(f"margin must lie in [0, 1), not {margin}")
    return margin
