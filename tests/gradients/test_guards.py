"""A program runs only for the energy it was made from, and a backward pass differentiates the energy that ran."""

from __future__ import annotations

import copy
import functools
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spen.energies import Energy
from spen.gradients import (
    Auto,
    Compiled,
    Exact,
    GradientStrategy,
)
from spen.gradients import auto as auto_module
from spen.gradients.compiled import NotTraceable, guards
from tests.gradients import readable_functions, readable_modules, readable_process  # noqa: F401  they add to KINDS
from tests.gradients.mutations import run
from tests.gradients.readable import KINDS, Term
from tests.helpers import distance, gradients

WIDTH = 3


# ── the property ──


@pytest.mark.parametrize("seed", [11, 12])
def test_the_next_gradient_is_that_of_the_energy_as_it_is(seed: int) -> None:
    """100 changes in all; ``python -m tests.gradients.mutations`` makes as many as it is given."""
    tally = run(50, seed)
    assert not tally.silent
    assert not tally.unknown
    assert not tally.needless
    assert tally.felt >= 20  # the changes are no empty ones
    assert sum(tally.errors.values()) <= 15, tally.errors


def test_every_kind_of_change_can_be_made() -> None:
    for make in KINDS.values():
        with ExitStack() as stack:
            _, changes = make(random.Random(0), stack)
            for change in changes.values():
                change()


# ── what an energy reads, one at a time ──


class Reading(Energy):
    """Σ tanh(β A y − 0.3 x)², where β comes from a function of the energy."""

    def __init__(self, beta: Callable[[], Any]) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.__dict__["beta"] = beta

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.beta() * self.mix(y) - 0.3 * x).square().sum(1)


def batch() -> Tensor:
    return torch.randn(2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def assert_follows(energy: nn.Module, strategy: GradientStrategy, change: Callable[[], Any]) -> None:
    """The gradient is that of Exact before and after a change, and the change is one."""
    x = batch()
    before = gradients(energy, Exact(), x)
    assert distance(gradients(energy, strategy, x), before) < 1e-9
    change()
    after = gradients(energy, Exact(), x)
    assert distance(gradients(energy, strategy, x), after) < 1e-9
    assert distance(after, before) > 1e-3


def programs() -> GradientStrategy:
    return Compiled(patience=0)


@pytest.mark.parametrize("strategy", [Auto(), Auto(patience=0, measure=False), Compiled(patience=0)], ids=str)
def test_a_field_of_an_object(strategy: GradientStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the gradient follows β."""
    if strategy.__dict__.get("patience") == 0:
        monkeypatch.setattr(auto_module, "_is_cpu", lambda device: False)  # as on a GPU: programs

    class Scaled(Reading):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return 1e-4 * self.beta() * torch.tanh(self.mix(y) - x).square().sum(1)

    cfg, sizes, x = SimpleNamespace(beta=1.0), [], batch()
    energy = Scaled(lambda: cfg.beta).double()
    for cfg.beta in (1.0, 30.0, 300.0):
        found = gradients(energy, strategy, x)
        assert distance(found, gradients(energy, Exact(), x)) < 1e-9
        sizes.append(float(found.norm()))
    assert sizes[1] > 5 * sizes[0]
    assert sizes[2] > 5 * sizes[1]


def test_an_attribute_of_a_metaclass() -> None:
    class Meta(type):
        beta = 1.0

    class Static(metaclass=Meta):
        pass

    assert_follows(Reading(lambda: 0.1 + Static.beta).double(), programs(), lambda: setattr(Meta, "beta", 2.0))


def test_the_bases_of_a_class() -> None:
    class Old:
        def value(self) -> float:
            return 1.0

    class New:
        def value(self) -> float:
            return 2.0

    class Config(Old):
        pass

    cfg = Config()
    assert_follows(Reading(lambda: cfg.value()).double(), programs(), lambda: setattr(Config, "__bases__", (New,)))


def test_a_method_in_place_of_a_value() -> None:
    """One name less and one more: the class is as large as it was."""

    class Base:
        def value(self) -> float:
            return 1.0

    class Config(Base):
        unused = 1.0

    def change() -> None:
        del Config.unused
        Config.value = lambda self: 2.0  # type: ignore[method-assign]

    cfg = Config()
    assert_follows(Reading(lambda: cfg.value()).double(), programs(), change)


def test_code_of_a_method_that_an_earlier_program_calls() -> None:
    """There and back again: methods of the object that is away are watched too."""

    class First:
        def value(self) -> float:
            return 1.0

    class Second:
        def value(self) -> float:
            return 1.5

    holder, first = SimpleNamespace(cfg=None), First()
    holder.cfg = first
    energy, strategy, x = Reading(lambda: holder.cfg.value()).double(), programs(), batch()
    gradients(energy, strategy, x)
    holder.cfg = Second()
    gradients(energy, strategy, x)
    First.value.__code__ = (lambda self: 2.0).__code__
    holder.cfg = first
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-9


def test_a_hook_on_all_modules() -> None:
    handles: list[Any] = []

    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return 2.0 * result if isinstance(module, nn.Linear) else None

    def change() -> None:
        handles.append(nn.modules.module.register_module_forward_hook(hook))

    energy, strategy = Reading(lambda: 1.0).double(), programs()
    try:
        assert_follows(energy, strategy, change)
    finally:
        handles[0].remove()
    assert distance(gradients(energy, strategy, batch()), gradients(energy, Exact(), batch())) < 1e-9


def test_the_order_of_an_ordered_dict() -> None:
    table = OrderedDict(a=1.0, b=0.5)

    def folded() -> float:
        return functools.reduce(lambda total, value: 0.5 * total + value, table.values(), 0.0)

    assert_follows(Reading(folded).double(), programs(), lambda: table.move_to_end("a"))


def test_two_parameters_become_one() -> None:
    class Two(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return (torch.tanh(self.a(y)) + torch.sin(self.b(y)) - x).square().sum(1)

    energy, strategy, x = Two().double(), programs(), batch()
    gradients(energy, strategy, x)
    energy.b.weight = energy.a.weight
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-9


def test_parameters_in_another_order() -> None:
    energy, strategy, x = Reading(lambda: 1.0).double(), programs(), batch()
    gradients(energy, strategy, x)
    energy.mix._parameters = dict(reversed(energy.mix._parameters.items()))
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-9


# ── no program without need ──


def test_equal_state_has_one_program() -> None:
    cfg = {"beta": 1.0, "more": [1, 2]}
    energy, strategy, x = Reading(lambda: cfg["beta"]).double(), Compiled(patience=0), batch()
    for _ in range(3):
        gradients(energy, strategy, x)
        cfg["more"] = [1, 2]
        energy.train()
        copy.deepcopy(energy.mix), pickle.dumps(energy.mix)  # both leave a mark on classes
        with torch.no_grad():
            energy.mix.weight.mul_(1.1)
    (program,) = strategy.programs(energy)
    cfg["beta"] = 2.0
    gradients(energy, strategy, x)
    cfg["beta"] = 1.0
    gradients(energy, strategy, x)
    assert len(strategy.programs(energy)) == 2
    assert program in strategy.programs(energy)


def test_states_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MANY_STATES", 3)
    cfg = SimpleNamespace(beta=0.5)
    energy, strategy, x = Reading(lambda: cfg.beta).double(), Compiled(patience=0), batch()
    for cfg.beta in (0.6, 0.7, 0.8):
        gradients(energy, strategy, x)
    cfg.beta = 0.9
    with pytest.raises(NotTraceable, match="the energy Reading reads something that is different at every call. Use"):
        gradients(energy, strategy, x)
    monkeypatch.setattr(auto_module, "_is_cpu", lambda device: False)
    auto = Auto(patience=0, measure=False)
    for cfg.beta in (0.6, 0.7, 0.8, 0.9, 1.0):
        assert distance(gradients(energy, auto, x), gradients(energy, Exact(), x)) < 1e-9
    assert "the energy cannot be compiled" in auto.explain()


class CountingCalls(Term):
    """Counts its calls, and looks at the number where it is told to."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.calls, self.by = 0, by

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        return self.curve(y, x, 1.0 + self.by * self.calls)


@pytest.mark.parametrize("by", [0.0, 0.1])
def test_an_energy_that_counts_its_calls(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    energy, x = CountingCalls(by).double(), batch()
    with pytest.raises(NotTraceable, match="the energy CountingCalls changes something that it reads whenever it is"):
        gradients(energy, Compiled(patience=0), x)
    monkeypatch.setattr(auto_module, "_is_cpu", lambda device: False)
    auto = Auto(patience=0, measure=False)
    gradients(energy, auto, x)  # looks, tries, and goes on without a program
    energy.calls = 0
    found = gradients(energy, auto, x)
    energy.calls = 0
    assert distance(found, gradients(energy, Exact(), x)) < 1e-9
