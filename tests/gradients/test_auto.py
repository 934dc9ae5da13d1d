"""How Auto chooses: by a rule without a clock, and in long runs by training steps taken in turns."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.domains import Reals, Simplex
from spen.energies import Energy, EntropySmoothed
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    GradientStrategy,
    auto_trial,
)
from spen.gradients import auto as module
from spen.gradients.auto import Look
from spen.rules import Momentum
from tests.helpers import Counting, distance, gradients, prior


class Quartic(Energy):
    """w ‖y − x‖⁴: no convolution, two derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.1))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.weight * (y - x).flatten(1).square().sum(1).square()


def look(energy: nn.Module, x: Tensor, steps: int = 4) -> Look:
    return Look.at(Descend(Reals(), Momentum(steps, 0.02)), Potential.of(energy, x), torch.zeros_like(x))


# ── the rule ──


def test_it_prints_as_it_is_made() -> None:
    assert str(Auto()) == "Auto()"
    assert str(Auto(1e-3, compiled=False)) == "Auto(tolerance=0.001, compiled=False)"


def test_double_backprop_on_a_cpu() -> None:
    auto, x = Auto(), torch.rand(2, 1, 8, 9)
    found = gradients(prior(), auto, x)
    assert distance(found, gradients(prior(), Exact(), x)) == 0
    assert auto.explain().startswith("Exact() for Scaled on cpu: double backprop holds about 0.")
    assert auto.explain().endswith(" MiB, within 25% of the memory")


def test_checkpoints_where_double_backprop_holds_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_memory", lambda device: 2**20)
    found = look(prior(), torch.rand(2, 1, 24, 32))
    assert str(found.plain) == "Checkpointed()"
    assert found.reason.endswith(" MiB, more than 25% of the memory")


def test_the_bytes_are_those_that_autograd_keeps() -> None:
    """Double backprop of the prior keeps six results of 16 channels and more for each step."""
    x = torch.rand(2, 1, 24, 32)
    held, operations = auto_trial.held_bytes(Descend(Reals(), Momentum(4, 0.1)), Potential.of(prior(), x), x)
    assert 6 <= held / (2 * 16 * 24 * 32 * 4) <= 12
    assert "ConvolutionBackward0" in operations


@pytest.mark.parametrize(
    ("energy", "through"), [(prior, "ForwardOverReverse()"), (Quartic, "Checkpointed()")], ids=["convolutions", "none"]
)
@pytest.mark.parametrize(("memory", "keep"), [(2**40, ", keep=1"), (2**20, "")])
def test_programs_on_a_gpu(energy: Any, through: str, memory: int, keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_memory", lambda device: memory)
    monkeypatch.setattr(module, "_is_cpu", lambda device: False)
    found = look(energy(), torch.rand(8, 1, 96, 128), steps=20)
    assert str(found.program) == f"Compiled({through}{keep if memory > 2**30 or energy is prior else ''})"


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, bar: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * bar


class Switched(Energy):
    """½ w ‖y − x‖²; a flag makes its square differentiable only once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.once = nn.Parameter(torch.tensor(0.7)), False

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        square = Once.apply(y - x) if self.once else (y - x).square()
        return self.weight * square.sum(1)


@pytest.mark.parametrize(("trained", "batches"), [(0.0, 21), (2.9, 21), (3.1, 4)])
def test_a_program_is_made_sooner_if_batches_take_seconds(
    trained: float, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the 15 s that a program takes on a GPU, and no fewer than three batches without one."""
    monkeypatch.setattr(module, "_making", lambda strategy, device: 15.0)
    choice = module.Choice("Quartic", "cuda:0", 4, 1, Compiled(), "a reason")
    known, start = module._Known(choice, Exact(), []), torch.zeros(2, 3)
    found = [known.ready(start, Auto().patience, trained) for _ in range(22)]
    assert found.index(True) + 1 == batches
    assert all(found[batches:])


def test_finite_differences_for_what_differentiates_once() -> None:
    energy, auto, x = Switched(), Auto(), torch.rand(2, 3)
    energy.once = True
    found = gradients(energy, auto, x)
    assert auto.explain().startswith("FiniteDifference() for Switched on cpu: the energy Switc")
    energy.once = False
    assert distance(found, gradients(energy, Exact(), x)) < 1e-3


def test_an_energy_that_changes_is_chosen_for_anew() -> None:
    energy, auto, x = Switched(), Auto(), torch.rand(2, 3)
    right = gradients(energy, auto, x)
    energy.once = True
    assert distance(gradients(energy, auto, x), right) < 1e-3
    assert auto.explain().startswith("FiniteDifference")


class Wrong(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 1)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.layer(y)[:, 0]  # y has three numbers


def test_the_users_own_error_is_shown_with_its_own_line() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        gradients(Wrong(), Auto(), torch.rand(2, 3))
    lines = "".join(traceback.format_exception(caught.value))
    assert "return self.layer(y)[:, 0]  # y has three numbers" in lines
    assert "not possible" not in str(caught.value)


def test_many_lengths_cost_what_exact_costs() -> None:
    """Choices are made for ranges of sizes, not for each length."""

    class Chain(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 4))

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return -torch.einsum("bia,ac,bic->b", y[:, :-1], self.table, y[:, 1:]) - (x * y).sum((1, 2))

    counts = []
    for strategy in (Auto(), Exact()):
        energy = Counting(EntropySmoothed(Chain()))
        minimizer = spen.Minimizer(Simplex(), Momentum(5, 0.1), strategy)
        for length in range(11, 51):
            x = torch.randn(4, length, 4)
            minimizer(energy, x, x).output.square().sum().backward()
        counts.append(energy.calls)
    assert counts[0] <= 1.05 * counts[1]


# ── in long runs ──


class FakeTime:
    """A clock that strategies advance by the seconds they are said to take. Trials may take 50 % of the time, not 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
        assert module.SHARE == 0.02
        monkeypatch.setattr(module, "SHARE", 0.5)
        self.now, self.seconds, self.order = 0.0, seconds, list[str]()
        monkeypatch.setattr(auto_trial.time, "perf_counter", lambda: self.now)
        for kind in (Exact, Checkpointed, FiniteDifference, Compiled):
            self._watch(monkeypatch, kind)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, kind: type[GradientStrategy]) -> None:
        run = kind.run

        def timed(strategy: Any, *arguments: Any) -> Any:
            self.now += next((s for name, s in self.seconds.items() if str(strategy).startswith(name)), 1.0)
            self.order.append(str(strategy).partition("(")[0])
            return run(strategy, *arguments)

        monkeypatch.setattr(kind, "run", timed)


@pytest.fixture
def checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate that needs no compiler."""
    monkeypatch.setattr(Auto, "_candidates", lambda auto, *_: [Checkpointed()] if auto.measure else [])


def trained(auto: Auto, batches: int = 40) -> None:
    energy, x = prior(4, 3), torch.rand(2, 1, 4, 4)
    for _ in range(batches):
        gradients(energy, auto, x, steps=2)


@pytest.mark.usefixtures("checkpointed")
def test_a_short_run_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch, {})
    trained(Auto(), 24)
    assert set(clock.order) == {"Exact"}


@pytest.mark.usefixtures("checkpointed")
def test_a_faster_exact_strategy_takes_over_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch, {"Exact": 1.0, "Checkpointed": 0.9})
    auto = Auto()
    trained(auto)
    first = clock.order.index("Checkpointed")
    assert first >= 12 / module.SHARE  # 12 steps are no more than this share of what came before
    assert clock.order[-1] == "Checkpointed"
    assert auto.explain().startswith("Checkpointed() for Scaled on cpu: faster than Exact() on 4 training steps each\n")
    assert "  Exact(): 1000.00 ms a training step\n  Checkpointed(): 900.00 ms a training step" in auto.explain()


@pytest.mark.usefixtures("checkpointed")
def test_within_five_percent_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch, {"Exact": 1.0, "Checkpointed": 0.96})
    trained(Auto())
    assert clock.order.count("Checkpointed") <= 8
    assert clock.order[-1] == "Exact"


@pytest.mark.usefixtures("checkpointed")
def test_measuring_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch, {"Checkpointed": 0.5})
    trained(Auto(measure=False))
    assert set(clock.order) == {"Exact"}


@pytest.mark.parametrize(("tolerance", "seconds", "wins"), [(None, 0.1, False), (0.05, 0.5, True), (0.05, 0.9, False)])
def test_inexact_strategies_must_be_allowed_and_much_faster(
    tolerance: float | None, seconds: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeTime(monkeypatch, {"FiniteDifference": seconds})
    trained(Auto(tolerance, compiled=False))
    assert (clock.order[-1] == "FiniteDifference") is wins


def test_an_inexact_gradient_beyond_the_tolerance_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTime(monkeypatch, {"FiniteDifference": 0.1})
    auto = Auto(1e-12, compiled=False)
    trained(auto)
    assert "FiniteDifference(): its gradient is " in auto.explain()
    assert auto.explain().startswith("Exact()")


def test_programs_are_tried_where_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_trial, "WORTH", 0)
    clock = FakeTime(monkeypatch, {"Compiled": 0.5})
    auto = Auto()
    trained(auto, 75)
    assert clock.order[-1] == "Compiled"
    assert auto.explain().startswith("Compiled(ForwardOverReverse(), keep=1) for Scaled on cpu: faster than Exact()")


class Looking(Energy):
    """Its formula depends on values: no program can be made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        size = self.weight * (y - x).flatten(1).square().sum(1)
        return size if float(y.detach().sum()) > -1 else 2 * size


def test_what_cannot_be_compiled_is_trained_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_is_cpu", lambda device: False)
    energy, auto, x = Looking(), Auto(patience=1), torch.rand(2, 3)
    right = gradients(energy, Exact(), x)
    for _ in range(4):
        assert distance(gradients(energy, auto, x), right) == 0
    assert auto.explain().startswith("Exact() for Looking on cpu: the energy cannot be compiled\n")
    said = (
        "Auto goes on with Exact(), without a program: the energy Looking cannot be traced: its Python code depends on "
    )
    assert said in capsys.readouterr().err


def test_prediction_never_needs_a_program() -> None:
    energy, x = Looking(), torch.rand(2, 3)
    outputs = []
    for strategy in (Exact(), Compiled(graphs=True, patience=0)):
        with torch.no_grad():
            outputs.append(spen.Minimizer(Reals(), Momentum(3, 0.1), strategy)(energy, x, x + 1).output)
    assert torch.equal(*outputs)


def test_small_energies_are_not_compiled_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTime(monkeypatch, {"Compiled": 0.5})
    auto = Auto()
    trained(auto, 45)
    assert (
        "Compiled(ForwardOverReverse(), keep=1): not tried: double backprop holds less than 4.0 MiB" in auto.explain()
    )


class Noisy(Energy):
    """Draws random numbers and counts its calls, in a buffer that changes and in one that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("others", torch.zeros(()))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.others = self.others + 1
        return self.weight * (nn.functional.dropout(y, 0.5) - x).square().sum(1)


def test_a_look_leaves_random_numbers_and_buffers_as_they_were() -> None:
    energy, x = Noisy(), torch.rand(2, 3)
    before, others = torch.get_rng_state(), energy.others
    look(energy, x)
    auto_trial.problem_of(
        Checkpointed(), Exact(), Descend(Reals(), Momentum(2, 0.02)), Potential.of(energy, x), torch.zeros_like(x), None
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert (float(energy.calls), float(energy.others)) == (0, 0)
    assert energy.others is others
