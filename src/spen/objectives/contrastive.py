"""E(y*) − E(ỹ), ỹ ~ exp(−E): contrastive divergence with Langevin or Hamiltonian sampling (Sec. 2.2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from spen.arguments import as_called, require
from spen.descent.potential import Potential
from spen.model import SPEN
from spen.objectives.checks import require_truth
from spen.objectives.coordinates import checked_margin, in_coordinates
from spen.protocols import Objective
from spen.tensors import as_rows, flat


class Sampler(ABC):
    """A Markov chain whose stationary density is exp(−U(z))."""

    steps: int

    @abstractmethod
    def move(self, potential: Potential, z: Tensor) -> Tensor:
        """One transition of every chain of the batch."""

    def run(self, potential: Potential, z: Tensor) -> Tensor:
        """``steps`` transitions, without gradient."""
        with torch.no_grad():
            for _ in range(self.steps):
                z = self.move(potential, z)
        return z

    def __repr__(self) -> str:
        return as_called(self)


class Langevin(Sampler):
    """z' = z − η ∇U(z) + √(2η) ξ, ξ ~ N(0, 1).

    ``corrected`` accepts or rejects each move (Metropolis), which makes the stationary density exact for any rate.
    """

    def __init__(self, steps: int = 10, rate: float = 0.01, *, corrected: bool = False) -> None:
        self.steps, self.rate = _checked(steps, rate)
        self.corrected = corrected

    def move(self, potential: Potential, z: Tensor) -> Tensor:
        slope, here = potential.gradient(z)
        proposal = z - self.rate * slope + math.sqrt(2 * self.rate) * torch.randn_like(z)
        if not self.corrected:
            return proposal
        back, there = potential.gradient(proposal)
        log_ratio = here - there + self._log_density(proposal, back, z) - self._log_density(z, slope, proposal)
        return _accept(log_ratio, proposal, z)

    def _log_density(self, start: Tensor, slope: Tensor, end: Tensor) -> Tensor:
        return -flat((end - start + self.rate * slope).square()).sum(1) / (4 * self.rate)


class Hamiltonian(Sampler):
    """p ~ N(0, 1), then ``leapfrog`` steps of size ε along dz = p, dp = −∇U, accepted or rejected as a whole."""

    def __init__(self, steps: int = 3, rate: float = 0.1, *, leapfrog: int = 10, corrected: bool = True) -> None:
        self.steps, self.rate = _checked(steps, rate)
        if leapfrog < 1:
            raise ValueError(f"a Hamiltonian move has at least one leapfrog step, not {leapfrog}")
        self.leapfrog = leapfrog
        self.corrected = corrected

    def move(self, potential: Potential, z: Tensor) -> Tensor:
        speed = torch.randn_like(z)
        slope, here = potential.gradient(z)
        start = here + _kinetic(speed)
        end = z
        for _ in range(self.leapfrog):
            speed = speed - 0.5 * self.rate * slope
            end = end + self.rate * speed
            slope, there = potential.gradient(end)
            speed = speed - 0.5 * self.rate * slope
        return _accept(start - there - _kinetic(speed), end, z) if self.corrected else end


class ContrastiveDivergence(Objective):
    """mean E(y*) − E(ỹ): its gradient is that of the negative log-likelihood when ỹ comes from the model.

    ``sampler`` moves chains from the truth (CD-k), in free coordinates of the domain, so ỹ never leaves it. ``margin``
    moves a truth on the boundary inside, where it has coordinates. ``truth`` turns the target into a point of the
    domain.
    """

    def __init__(self, sampler: Sampler | None = None, *, margin: float = 0.05, truth: Any = None) -> None:
        if sampler is not None:
            require(sampler, Sampler, "sampler", "a sampler such as Langevin()")
        require_truth(truth)
        self.sampler = Langevin() if sampler is None else sampler
        self.margin, self.truth = checked_margin(margin), truth

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        features = model.features(x)
        space, potential, truth = in_coordinates(model, features, target, self.truth, self.margin)
        negative = space.output(self.sampler.run(potential.detached(), truth.detach()))
        return (model.energy(space.output(truth), features) - model.energy(negative, features)).mean()


def _accept(log_ratio: Tensor, proposal: Tensor, z: Tensor) -> Tensor:
    taken = torch.rand_like(log_ratio).log() < log_ratio
    return torch.where(as_rows(taken, z), proposal, z)


def _kinetic(speed: Tensor) -> Tensor:
    return 0.5 * flat(speed.square()).sum(1)


def _checked(steps: int, rate: float) -> tuple[int, float]:
    if steps < 1 or not rate > 0:
        raise ValueError(f"a sampler needs steps ≥ 1 and a positive rate, not {steps} and {rate}")
    return steps, rate
