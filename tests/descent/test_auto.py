"""How Auto chooses: the fastest, unless another is as fast and exact, or as fast and leaner."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import spen
from spen.descent.compiled.trace import Program
from spen.descent.gradients import auto as module
from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Auto, Compiled, Exact, FiniteDifference, GradientStrategy
from spen.rules import Momentum
from tests.helpers import prior


def gradients(energy: nn.Module, strategy: GradientStrategy, x: Tensor, steps: int = 10) -> Tensor:
    minimizer = spen.Minimizer(Reals(), Momentum(steps, 0.02, decay=0.25, learn_rates=True), strategy)
    total = sum(y.square().mean() for y in minimizer(energy, x, torch.zeros_like(x)).outputs)
    assert isinstance(total, Tensor)
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(energy.parameters()))])


def told(monkeypatch: pytest.MonkeyPatch, times: dict[str, float], compiled: bool | None = None) -> tuple[Auto, Tensor]:
    """Auto with made-up seconds for the strategies whose names begin so; others are slow."""

    def seconds(_: object, strategy: GradientStrategy) -> float:
        if isinstance(strategy, Compiled) and strategy.keep and "keep" in times:
            return times["keep"] + (1 - strategy.keep) * times["again"]
        return next((s for name, s in times.items() if str(strategy).startswith(name)), 9.0)

    monkeypatch.setattr(module._Trial, "_seconds", seconds)
    monkeypatch.setattr(module, "WORTH", 0)
    auto, x = Auto(compiled=compiled), torch.rand(2, 1, 8, 9)
    found = gradients(prior(), auto, x)
    exact = gradients(prior(), Exact(), x)
    assert float((found - exact).norm() / exact.norm()) < 1e-2
    return auto, found


def test_it_prints_as_it_is_made() -> None:
    assert (str(Auto()), str(Auto(1e-3, compiled=True))) == ("Auto(0.01)", "Auto(0.001, compiled=True)")


def test_the_fastest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, _ = told(monkeypatch, {"Exact": 1.0, "Checkpointed": 1.06, "FiniteDifference": 1.2}, compiled=False)
    assert auto.explain().startswith("Exact() for Scaled on cpu: the fastest of\n  Exact(): 1000.00 ms, ")
    assert "Compiled" not in auto.explain()


def test_within_five_percent_the_leaner_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, _ = told(monkeypatch, {"Exact": 1.0, "Checkpointed": 1.04}, compiled=False)
    first = "Checkpointed() for Scaled on cpu: with less memory, within 5% of Exact(), the fastest of\n"
    assert auto.explain().startswith(first)


def test_within_five_percent_an_exact_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, _ = told(monkeypatch, {"FiniteDifference": 1.0, "Exact": 1.04}, compiled=False)
    assert auto.explain().startswith("Exact() for Scaled on cpu: with an exact gradient, within 5% of FiniteDifference")


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"Exact": 1.0, "keep": 1.0, "again": 0.25}, "keep=0.8"),  # 5 % of time for 2 of 10 steps
        ({"Exact": 1.2, "keep": 1.0, "again": 0.25}, "keep=0.6"),  # half of what was gained over Exact is spent
        ({"Exact": 1.0, "keep": 1.04, "again": 0.25}, "keep=1"),
        ({"Exact": 1.0, "keep": 1.0, "again": 0.01}, "keep=0.7"),  # too good to be true
    ],
)
def test_as_few_steps_are_kept_as_the_time_allows(
    times: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto, _ = told(monkeypatch, times)
    assert auto.explain().startswith(f"Compiled(ForwardOverReverse(), {chosen}) for Scaled on cpu: with less memory, ")
    kept = dict(re.findall(r"^  (.*): .* ms, (.*) MiB kept", auto.explain(), re.MULTILINE))
    assert float(kept[f"Compiled(ForwardOverReverse(), {chosen})"]) < float(kept["Exact()"])


@pytest.mark.parametrize("fast", [1.0, 2.0])
def test_programs_serve_training_if_they_win_and_are_forgotten_if_not(
    fast: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Program] = []
    begin = Program.__init__

    def counted(self: Program, *args: Any, **options: Any) -> None:
        made.append(self)
        begin(self, *args, **options)

    energy = prior()
    monkeypatch.setattr(Program, "__init__", counted)
    monkeypatch.setitem(globals(), "prior", lambda: energy)
    auto, _ = told(monkeypatch, {"Exact": 1.5, "keep": fast, "again": 1.0})
    assert auto._latest is not None
    programs = [
        p for m in auto._latest.measurements if isinstance(m.strategy, Compiled) for p in m.strategy._programs.values()
    ]
    assert len(made) == 1  # in the trial; training found it there
    assert len(programs) == (1 if fast < 1.5 else 0)


def test_a_slow_program_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, _ = told(monkeypatch, {"Exact": 1.0, "keep": 1.06, "again": 0.25})
    assert auto.explain().startswith("Exact() for Scaled on cpu: the fastest of")


def test_small_problems_are_not_traced() -> None:
    energy, x = prior(), torch.rand(1, 1, 8, 9)
    auto = Auto(repeats=1)
    gradients(energy, auto, x, steps=2)
    assert "Compiled" not in auto.explain()


class Looking(Energy):
    """An energy whose formula depends on values: not traceable."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        size = self.weight * (y - x).flatten(1).square().sum(1)
        return size if float(y.detach().sum()) > -1 else 2 * size


def test_what_cannot_be_traced_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH", 0)
    auto = Auto(repeats=1)
    gradients(Looking(), auto, torch.rand(2, 3), steps=2)
    assert "keep=1): not possible, the energy Looking cannot be traced" in auto.explain()


def test_the_hopeless_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def seconds(_: object, strategy: GradientStrategy) -> float:
        asked.append(type(strategy).__name__)
        return 1.0 if isinstance(strategy, Exact) else 2.5

    monkeypatch.setattr(module._Trial, "_seconds", seconds)
    gradients(prior(), Auto(repeats=3, compiled=False), torch.rand(2, 1, 8, 9), steps=2)
    assert asked[:4] == ["Exact", "Checkpointed", "ForwardOverReverse", "FiniteDifference"]
    assert asked[4:] == ["Exact", "Exact"]


def test_kept_bytes_are_those_of_saved_tensors() -> None:
    auto, x = Auto(repeats=1, compiled=False), torch.rand(2, 1, 24, 32)
    gradients(prior(), auto, x, steps=4)
    choice = auto._latest
    assert choice is not None
    kept = {type(m.strategy): m.kept for m in choice.measurements}
    one = 2 * 16 * 24 * 32 * 4  # a result of 16 channels
    exact, differences = kept[Exact] or 0, kept[FiniteDifference] or 0
    assert exact >= 4 * 6 * one
    assert 0 < differences < exact / 3


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"patience": 3}, [False, None]),
        ({"patience": 0}, [None]),
        ({"patience": 3, "compiled": True}, [True]),
        ({"patience": 9}, [False]),
    ],
)
def test_programs_compete_when_a_run_has_lasted(
    options: dict[str, Any], asked: list[bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[bool | None] = []
    choose = module._Trial.choice

    def choice(self: module._Trial, compiled: bool | None) -> module.Choice:
        trials.append(compiled)
        return choose(self, False)

    monkeypatch.setattr(module, "_programs_wait", lambda device: True)
    monkeypatch.setattr(module._Trial, "choice", choice)
    energy, auto, x = prior(), Auto(repeats=1, **options), torch.rand(1, 1, 8, 9)
    for batch in range(8):
        gradients(energy, auto, x, steps=2)
        assert len(trials) == 1 or batch >= 3
    assert trials == asked


def test_patience_is_not_negative() -> None:
    with pytest.raises(ValueError, match="Auto needs patience ≥ 0, not -1"):
        Auto(patience=-1)


@pytest.mark.parametrize(
    ("compiled", "device", "kept", "names"),
    [
        (None, "cpu", module.WORTH - 1, []),
        (None, "cpu", module.WORTH, ["ForwardOverReverse(), keep=1"]),
        (None, "cuda", module.SMALL, ["ForwardOverReverse(), keep=1", "ForwardOverReverse()"]),
        (None, "cuda", module.SMALL + 1, ["ForwardOverReverse()"]),
        (False, "cuda", 0, []),
        (True, "cpu", 0, ["ForwardOverReverse(), keep=1", "Checkpointed()", "ForwardOverReverse()"]),
    ],
)
def test_which_programs_compete(compiled: bool | None, device: str, kept: int, names: list[str]) -> None:
    found = module._programs(compiled, torch.device(device), kept)
    assert [str(strategy) for strategy in found] == [f"Compiled({name})" for name in names]


def test_bfloat16_competes_on_a_gpu_when_asked() -> None:
    *_, last = module._programs(True, torch.device("cuda"), 0)
    assert str(last) == "Compiled(ForwardOverReverse(), precision=torch.bfloat16)"


def test_a_trial_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the candidates saved is let go of, forward mode's too."""
    watchers: list[module._Kept] = []
    begin = module._Kept.__init__

    def watched(self: module._Kept, potential: Any) -> None:
        watchers.append(self)
        begin(self, potential)

    monkeypatch.setattr(module._Kept, "__init__", watched)
    gradients(prior(), Auto(repeats=1, compiled=True), torch.rand(2, 1, 24, 32), steps=4)
    gc.collect()
    assert len(watchers) >= 7
    assert max(w.now for w in watchers) < 0.01 * max(w.most for w in watchers)


def pickled(thing: Any) -> Any:
    """As it arrives in a process that it is handed to: bytes of this test's own, no file."""
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("batches", [0, 1])
def test_a_model_that_has_chosen_can_be_copied_and_handed_on(batches: int) -> None:
    energy, auto = prior(), Auto(0.02, repeats=1, compiled=False, patience=7)
    minimizer, x = spen.Minimizer(Reals(), Momentum(2, 0.02), auto), torch.rand(2, 1, 8, 9)
    model = spen.SPEN(features=nn.Identity(), init=nn.Identity(), energy=energy, minimizer=minimizer)
    for _ in range(batches):
        model(x).output.sum().backward()
    for again in (pickled(model), copy.deepcopy(model)):
        found = again.minimizer.gradient
        assert (found.tolerance, found.repeats, found.compiled, found.patience) == (0.02, 1, False, 7)
        assert found.explain() == "Auto has not chosen yet: it measures on the first batch that is trained on"
        torch.testing.assert_close(again(x).output, model(x).output)


def test_a_trajectory_can_be_handed_on() -> None:
    energy, x = prior(), torch.rand(2, 1, 8, 9)
    with torch.no_grad():
        trajectory = spen.Minimizer(Reals(), Momentum(2, 0.02))(energy, x, x)
    again = pickled(trajectory)
    torch.testing.assert_close(again.energies, trajectory.energies)


class Failing(Energy):
    """An energy that forward mode meets with an error of a kind of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.weight, self.error = nn.Parameter(torch.ones(())), error

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        if forward_ad.unpack_dual(y).tangent is not None:
            raise self.error
        return self.weight * (y - x).square().square().sum(1)


@pytest.mark.parametrize("error", [IndexError("too far"), TypeError("no such thing"), KeyError("too far")])
def test_a_candidate_that_fails_is_not_chosen_whatever_the_error(error: Exception) -> None:
    auto, x = Auto(repeats=1, compiled=False), torch.rand(2, 3)
    gradients(Failing(error), auto, x, steps=2)
    assert f"ForwardOverReverse(): not possible, {error}\n" in auto.explain()


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


def test_a_trial_leaves_random_numbers_and_buffers_as_they_were() -> None:
    energy, x, auto = Noisy(), torch.rand(2, 3), Auto(tolerance=1e9, repeats=1, compiled=False)
    descend, potential = Descend(Reals(), Momentum(2, 0.02)), Potential.of(energy, x)
    before, others = torch.get_rng_state(), energy.others
    auto.choose(descend, potential, torch.zeros_like(x))
    assert torch.equal(torch.get_rng_state(), before)
    assert (float(energy.calls), float(energy.others)) == (0, 0)
    assert energy.others is others
