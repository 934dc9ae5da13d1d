"""Free coordinates z of a domain, so that a density over y can be sampled and scored without walls.

p(y) ∝ exp(−E(y))  ⇒  p(z) ∝ exp(−U(z)),  U(z) = E(y(z)) − log|dy/dz|
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.domains import Box, Reals, Simplex
from spen.energies import Energy
from spen.energies.compose import one_per_example
from spen.protocols import Domain, Features
from spen.tensors import flat


class Coordinates(ABC):
    """A smooth map from ℝⁿ onto the inside of a domain."""

    @abstractmethod
    def enter(self, y: Tensor, margin: float) -> Tensor:
        """z of y, after pulling y a fraction ``margin`` of the way to the middle (a corner has no coordinates)."""

    @abstractmethod
    def output(self, z: Tensor) -> Tensor:
        """y of z."""

    @abstractmethod
    def log_volume(self, z: Tensor) -> Tensor:  # (B, …) -> (B,)
        """log|dy/dz|, up to a constant."""


class Identity(Coordinates):
    """ℝⁿ: z = y."""

    def enter(self, y: Tensor, margin: float) -> Tensor:
        return y

    def output(self, z: Tensor) -> Tensor:
        return z

    def log_volume(self, z: Tensor) -> Tensor:
        return z.new_zeros(z.shape[0])


class Logistic(Coordinates):
    """[low, high]ⁿ: y = low + (high − low)·u, u = sigmoid(z), dy/dz = (high − low)·u(1 − u)."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def enter(self, y: Tensor, margin: float) -> Tensor:
        if not self.box.is_unit:
            low, high = self.box.bounds(y)
            y = (y - low) / (high - low)
        return torch.logit(torch.lerp(y, torch.full_like(y, 0.5), margin))

    def output(self, z: Tensor) -> Tensor:
        inside = torch.sigmoid(z)
        return inside if self.box.is_unit else torch.lerp(*self.box.bounds(z), inside)

    def log_volume(self, z: Tensor) -> Tensor:
        return flat(F.logsigmoid(z) + F.logsigmoid(-z)).sum(1)


class AdditiveLogistic(Coordinates):
    """Simplices along ``dim``: y = softmax(z), dy/dz = Π y_k for K − 1 differences of z.

    The softmax forgets the mean of z, which would wander: it gets a standard normal density of its own.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def enter(self, y: Tensor, margin: float) -> Tensor:
        logs = torch.lerp(y, torch.full_like(y, 1 / y.shape[self.dim]), margin).log()
        return logs - logs.mean(self.dim, keepdim=True)

    def output(self, z: Tensor) -> Tensor:
        return torch.softmax(z, self.dim)

    def log_volume(self, z: Tensor) -> Tensor:
        free = 0.5 * z.shape[self.dim] * z.mean(self.dim).square()
        return (torch.log_softmax(z, self.dim).sum(self.dim) - free).reshape(z.shape[0], -1).sum(1)


def coordinates_of(domain: Domain) -> Coordinates:
    """The coordinates of one of the library's domains."""
    if isinstance(domain, Reals):
        return Identity()
    if isinstance(domain, Box):
        return Logistic(domain)
    if isinstance(domain, Simplex):
        return AdditiveLogistic(domain.dim)
    raise ValueError(f"{type(domain).__name__} has no free coordinates; densities are known for Reals, Box and Simplex")


class InCoordinates(Energy):
    """U(z; F) = E(y(z); F) − log|dy/dz|. Wraps an energy."""

    def __init__(self, energy: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.energy = energy
        self.coordinates = coordinates

    def forward(self, y: Tensor, features: Features) -> Tensor:
        value = one_per_example(self.energy(self.coordinates.output(y), features), y, type(self.energy).__name__)
        return value - self.coordinates.log_volume(y)
