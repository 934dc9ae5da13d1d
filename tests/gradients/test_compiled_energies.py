"""Energies and inputs of many kinds: a program gives the gradients of Exact, or says in a sentence why it cannot."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Checkpointed, Compiled, Exact, ForwardOverReverse
from spen.protocols import GradientStrategy
from spen.rules import GradientDescent
from tests.helpers import distance


def gradients(energy: nn.Module, strategy: GradientStrategy, features: Any, start: Tensor) -> Tensor:
    """The gradients of all parameters and of the start, one after another."""
    start = start.detach().requires_grad_()
    y = spen.Minimizer(Reals(), GradientDescent(3, 0.05), strategy)(energy, features, start).output
    wanted = [*energy.parameters(), start]
    return torch.cat([g.flatten() for g in torch.autograd.grad(y.square().sum(), wanted)])


class Context(Energy):
    """A network of the features, whose tangents are zeros, times one of y."""

    def __init__(self, *activations: nn.Module) -> None:
        super().__init__()
        self.context = nn.Sequential(nn.Linear(4, 8), *activations)
        self.layer = nn.Linear(4, 8)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return (self.context(x) * self.layer(y).tanh()).sum(1) + y.square().sum(1)


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_activations_of_constants_agree_with_exact(keep: float) -> None:
    energy = Context(nn.ELU(), nn.SELU(), nn.CELU(), nn.Softplus()).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found = gradients(energy, Compiled(patience=0, keep=keep), x, torch.zeros_like(x))
    assert distance(found, gradients(energy, Exact(), x, torch.zeros_like(x))) < 1e-12


class Planes(Energy):
    """A convolution whose result is read in several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        h = F.softplus(self.layer(y))
        vectors = h.flatten(1).square().sum(1) + h.reshape(len(h), -1).pow(3).sum(1)
        groups = h.unflatten(1, (2, 4)).logsumexp(2).sum((1, 2, 3)) + self.norm(h).tanh().sum((1, 2, 3))
        return vectors + groups + (y - x).flatten(1).square().sum(1)


@pytest.mark.parametrize(
    "strategy", [Compiled(patience=0), Compiled(patience=0, keep=True), Compiled(Checkpointed(), patience=0)], ids=str
)
def test_a_convolution_may_be_read_in_any_shape(strategy: Compiled) -> None:
    energy, x = Planes(), torch.randn(3, 2, 6, 7)
    assert distance(gradients(energy, strategy, x, x), gradients(energy, Exact(), x, x)) < 1e-5


@pytest.mark.parametrize("fuse", [False, True])
def test_the_layout_of_inputs_may_change(fuse: bool) -> None:
    class Flat(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 8, 3, padding=1)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.layer(y).tanh().flatten(1).square().sum(1) + (y - x).flatten(1).square().sum(1)

    energy, strategy = Flat(), Compiled(Checkpointed(), patience=0, fuse=fuse)
    plain = torch.randn(3, 2, 6, 6)
    last = plain.contiguous(memory_format=torch.channels_last)
    for features, start in ((last, plain), (last, last), *([] if fuse else [(plain, plain), (plain, last)])):
        found = gradients(energy, strategy, features, start)
        assert distance(found, gradients(energy, Exact(), features, start)) < 1e-5


@pytest.mark.parametrize("strategy", [ForwardOverReverse(), Checkpointed(), Compiled(patience=0)], ids=str)
def test_a_start_may_be_one_vector_for_all(strategy: GradientStrategy) -> None:
    energy, x = Context(nn.Tanh()).double(), torch.randn(5, 4, dtype=torch.float64)
    first = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def slope(strategy: GradientStrategy) -> Tensor:
        y = spen.Minimizer(Reals(), GradientDescent(3, 0.05), strategy)(energy, x, first.expand(5, -1)).output
        return torch.autograd.grad(y.square().sum(), first)[0]

    torch.testing.assert_close(slope(strategy), slope(Exact()), rtol=1e-12, atol=1e-12)


class Plain(Energy):
    """Attributes that are neither parameters nor buffers nor numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.0, 4, dtype=torch.float64))
        self.scale = torch.tensor(1.0, dtype=torch.float64)
        self.act: Callable[[Tensor], Tensor] = torch.tanh
        self.bend: Callable[[Tensor], Tensor] | None = None

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        energies = (self.weight * self.act(self.scale * y)).sum(1) + (y - x).square().sum(1)
        return energies if self.bend is None else self.bend(energies)

    def twice(self, energies: Tensor) -> Tensor:
        return energies + energies


CHANGES: dict[str, Callable[[Plain], Any]] = {
    "tensor": lambda energy: setattr(energy, "scale", torch.tensor(3.0, dtype=torch.float64)),
    "in place": lambda energy: energy.scale.fill_(2.0),
    "function": lambda energy: setattr(energy, "act", torch.sin),
    "from None": lambda energy: setattr(energy, "bend", energy.twice),
}


def test_a_replaced_attribute_is_seen() -> None:
    energy, strategy, x = Plain(), Compiled(patience=0), torch.randn(3, 4, dtype=torch.float64)
    before = gradients(energy, strategy, x, x)
    for name, change in CHANGES.items():
        change(energy)
        found = gradients(energy, strategy, x, x)
        assert distance(found, before) > 1e-3, name
        assert distance(found, gradients(energy, Exact(), x, x)) < 1e-12, name
        before = found


def test_a_successor_at_the_same_address_is_another() -> None:
    energy, strategy, x = Plain(), Compiled(patience=0), torch.randn(3, 4, dtype=torch.float64)
    for scale in (1.0, 2.0, 3.0, 4.0):
        energy.scale = torch.tensor(scale, dtype=torch.float64)  # the one before is freed
        assert distance(gradients(energy, strategy, x, x), gradients(energy, Exact(), x, x)) < 1e-12


def test_programs_do_not_keep_their_energy_alive() -> None:
    energy, strategy, x = Plain(), Compiled(patience=0), torch.randn(3, 4, dtype=torch.float64)
    energy.bend = energy.twice
    gradients(energy, strategy, x, x)
    del energy
    gc.collect()
    assert len(strategy._slots) == 0


class Scored(Energy):
    """Features with a number that is no tensor."""

    def forward(self, y: Tensor, features: dict[str, Any]) -> Tensor:
        return float(features["scale"]) * (y - features["x"]).square().sum(1)


def test_a_number_of_numpys_among_the_features_is_a_number() -> None:
    x, energy = torch.randn(3, 4), Scored()
    found = gradients(energy, Compiled(patience=0), {"x": x, "scale": np.float64(2.0)}, x)
    assert distance(found, gradients(energy, Exact(), {"x": x, "scale": 2.0}, x)) < 1e-6
    with pytest.raises(ValueError, match="the features hold a ndarray, which no gradient would reach: F may return"):
        gradients(energy, Compiled(patience=0), {"x": x, "scale": np.array(2.0)}, x)
