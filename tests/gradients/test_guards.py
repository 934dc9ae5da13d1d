"""A program runs only for the energy it was made from, and a backward pass differentiates the energy that ran."""

from __future__ import annotations

import copy
import functools
import pickle
import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    NotTwiceDifferentiable,
    auto_rule,
)
from spen.gradients.compiled import NotTraceable, guards
from spen.rules import Momentum
from tests.gradients.mutations import run
from tests.gradients.readable import KINDS, Term
from tests.gradients.test_once_differentiable import CustomEnergy
from tests.helpers import distance, gradients, prior

WIDTH = 3


# ── the property ──


@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_the_next_gradient_is_that_of_the_energy_as_it_is(seed: int) -> None:
    """200 changes in all; ``python -m tests.gradients.mutations`` takes as many as it is told."""
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
        monkeypatch.setattr(auto_rule, "_is_cpu", lambda device: False)  # as on a GPU: programs

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
    monkeypatch.setattr(auto_rule, "_is_cpu", lambda device: False)
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
    monkeypatch.setattr(auto_rule, "_is_cpu", lambda device: False)
    auto = Auto(patience=0, measure=False)
    gradients(energy, auto, x)  # looks, tries, and goes on without a program
    energy.calls = 0
    found = gradients(energy, auto, x)
    energy.calls = 0
    assert distance(found, gradients(energy, Exact(), x)) < 1e-9


# ── refused ──


class Drifting(Energy):
    """Moves a buffer whenever it is evaluated."""

    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("level", torch.tensor(0.5))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.level.mul_(1.1)
        return torch.tanh(self.level * self.mix(y) - x).square().sum(1)


def test_a_tensor_that_moves_with_every_evaluation() -> None:
    with pytest.raises(NotTraceable, match="has another gradient than itself|changes a tensor that it reads"):
        gradients(Drifting().double(), Compiled(patience=0), batch())
    for strategy in (Checkpointed(), ForwardOverReverse()):
        with pytest.raises(RuntimeError, match="the energy Drifting has another value in the backward pass .*Exact"):
            gradients(Drifting().double(), strategy, batch())


SENTENCE = "cannot be traced: it assigns a tensor that it computes to something that stays when the call is over. Use"


def test_power_iterations() -> None:
    """Spectral norm assigns its vectors with every evaluation in training mode."""
    energy, x = Reading(lambda: 1.0).double(), batch()
    parametrizations.spectral_norm(energy.mix)
    exact = gradients(energy, Exact(), x)
    assert distance(gradients(energy, Checkpointed(), x), exact) < 1e-9  # they have arrived before training begins
    with pytest.raises(NotTraceable, match=SENTENCE):
        gradients(energy, Compiled(patience=0), x)
    energy.eval()
    for strategy in (Exact(), Checkpointed(), Compiled(patience=0)):
        assert distance(gradients(energy, strategy, x), exact) < 1e-9


def test_results_that_an_energy_puts_aside() -> None:
    class Remembering(Reading):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            self.latest = self.mix(y).detach()
            return super().forward(y, x)

    energy, x = Remembering(lambda: 1.0).double(), batch()
    with pytest.raises(NotTraceable, match=SENTENCE):
        gradients(energy, Compiled(patience=0), x)
    assert energy.latest.shape == (2, WIDTH)
    assert distance(gradients(energy, Checkpointed(), x), gradients(energy, Exact(), x)) < 1e-9


def test_batch_norm_in_training_mode() -> None:
    """It moves its running averages, and reads them in eval mode alone."""

    class Normed(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(self.norm(self.mix(y).mT) - x.mT).square().sum((1, 2))

    x = torch.randn(5, 4, WIDTH, dtype=torch.float64)
    energy = Normed().double()
    for mode in (True, False):
        energy.train(mode)
        exact = gradients(energy, Exact(), x)
        for strategy in (Checkpointed(), ForwardOverReverse(), Compiled(patience=0)):
            assert distance(gradients(energy, strategy, x), exact) < 1e-9


def test_a_mode_of_torch_functions() -> None:
    class Sines(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    energy, strategy, x = Reading(lambda: 1.0).double(), programs(), batch()
    gradients(energy, strategy, x)
    with Sines(), pytest.raises(NotTraceable, match="cannot be traced under a TorchFunctionMode"):
        gradients(energy, strategy, x)
    gradients(energy, strategy, x)


def test_a_cache_that_dynamo_looks_behind() -> None:
    source = {"beta": 1.0}
    energy, strategy, x = Reading(functools.lru_cache(lambda: source["beta"])).double(), programs(), batch()
    gradients(energy, strategy, x)
    source["beta"] = 2.0  # the cache still holds 1
    with pytest.raises(NotTraceable, match="its program has another gradient than itself"):
        gradients(energy, strategy, x)


# ── between a descent and its backward pass ──


REPLAYED = [Checkpointed(), ForwardOverReverse(), Compiled(patience=0), Compiled(Checkpointed(), keep=True, patience=0)]


class Switched(Energy):
    """Reads a mode, a number, a function, a buffer and a plain tensor of its own."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.beta, self.act = nn.Linear(WIDTH, WIDTH), 1.0, torch.tanh
        self.register_buffer("scale", torch.ones(WIDTH))
        self.plain = torch.full((WIDTH,), 0.5, dtype=torch.float64)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        gain = 1.0 if self.training else 1.5
        return (self.act(gain * self.beta * self.scale * self.mix(y)) - self.plain * x).square().sum(1)


EXCHANGES: dict[str, Callable[[Switched, Momentum], Any]] = {
    "mode": lambda energy, rule: energy.eval(),
    "number": lambda energy, rule: setattr(energy, "beta", 2.0),
    "function": lambda energy, rule: setattr(energy, "act", torch.sin),
    "buffer": lambda energy, rule: setattr(energy, "scale", 2 * energy.scale),
    "data": lambda energy, rule: setattr(energy.scale, "data", 2 * energy.scale),
    "tensor": lambda energy, rule: setattr(energy, "plain", 2 * energy.plain),
    "layer": lambda energy, rule: setattr(energy, "mix", nn.Linear(WIDTH, WIDTH).double()),
    "method": lambda energy, rule: setattr(energy, "forward", lambda y, x: y.square().sum(1)),
    "decay": lambda energy, rule: setattr(rule, "decay", 0.9),
}


@pytest.mark.parametrize("strategy", REPLAYED, ids=str)
def test_the_backward_pass_belongs_to_the_energy_that_ran(strategy: GradientStrategy) -> None:
    for name, exchange in EXCHANGES.items():
        torch.manual_seed(0)
        energy, rule, x = Switched().double(), Momentum(3, 0.2, decay=0.5), batch()
        wanted = list(energy.parameters())

        def begun(strategy: GradientStrategy) -> Tensor:
            return spen.Minimizer(Reals(), rule, strategy)(energy, x, torch.zeros_like(x)).output.square().sum()  # noqa: B023

        exact = torch.autograd.grad(begun(Exact()), wanted)
        loss = begun(strategy)
        exchange(energy, rule)
        now = dict(vars(energy))
        try:
            found = torch.autograd.grad(loss, wanted)
        except RuntimeError as error:
            assert name == "data", name  # seen by its value alone
            assert "another value in the backward pass" in str(error)  # noqa: PT017
            continue
        for mine, right in zip(found, exact, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-12)
        assert vars(energy) == now  # as the user left it


@pytest.mark.parametrize("strategy", [*REPLAYED, Compiled(patience=0, graphs=True)], ids=str)
@pytest.mark.parametrize("name", ["scale", "plain"])
def test_tensors_changed_in_place_are_noticed(name: str, strategy: GradientStrategy) -> None:
    energy, x = Switched().double(), batch()
    loss = spen.Minimizer(Reals(), Momentum(3, 0.2), strategy)(energy, x, torch.zeros_like(x)).output.square().sum()
    getattr(energy, name).mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation|another value in the backward pass"):
        loss.backward()


@pytest.mark.parametrize("strategy", REPLAYED[:2], ids=str)
def test_a_parametrization_between_descent_and_backward_is_noticed(strategy: GradientStrategy) -> None:
    energy, x = Reading(lambda: 1.0).double(), batch()
    loss = spen.Minimizer(Reals(), Momentum(3, 0.2), strategy)(energy, x, torch.zeros_like(x)).output.square().sum()
    parametrizations.weight_norm(energy.mix)
    with pytest.raises(RuntimeError, match="was a Linear in the descent is a ParametrizedLinear in the backward pass"):
        loss.backward()


@pytest.mark.parametrize("strategy", REPLAYED[:2], ids=str)
def test_what_nobody_holds_is_noticed_by_its_value(strategy: GradientStrategy) -> None:
    cfg, x = SimpleNamespace(beta=1.0), batch()
    energy = Reading(lambda: cfg.beta).double()
    loss = spen.Minimizer(Reals(), Momentum(3, 0.2), strategy)(energy, x, torch.zeros_like(x)).output.square().sum()
    cfg.beta = 1.01
    sentence = "the energy Reading has another value in the backward pass than it had in the descent: .*gradient=Exact"
    with pytest.raises(RuntimeError, match=sentence):
        loss.backward(retain_graph=True)
    cfg.beta = 1.0
    loss.backward()


# ── second derivatives that come and go ──


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), Compiled(patience=0)], ids=str)
def test_a_flag_takes_the_second_derivative_away(strategy: GradientStrategy) -> None:
    """A Function right below a sum drops out of the second derivative without an error of autograd's own."""
    energy, x = CustomEnergy(once=False).double(), torch.randn(2, 6, 8, dtype=torch.float64)
    for _ in range(2):
        gradients(energy, strategy, x)
    energy.once = True
    with pytest.raises(NotTwiceDifferentiable, match="SquareOnce can be differentiated only once"):
        gradients(energy, strategy, x)
    energy.once = False
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-9


def test_auto_sees_that_the_second_derivative_has_gone() -> None:
    energy, x, auto = CustomEnergy(once=False).double(), torch.randn(2, 6, 8, dtype=torch.float64), Auto()
    exact = gradients(energy, Exact(), x)
    assert distance(gradients(energy, auto, x), exact) < 1e-9
    energy.once = True
    assert distance(gradients(energy, auto, x), exact) < 1e-6
    assert auto.explain().startswith("FiniteDifference")


# ── finite differences where they are noise or nothing ──


class Wide(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1, False)
        )

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.net(y).squeeze(1).float() + 0.5 * (y - x).square().sum(1)


@pytest.mark.parametrize("make", [Wide, prior], ids=["linear", "convolutions"])
def test_finite_differences_under_autocast(make: Callable[[], Energy]) -> None:
    energy, x = make(), torch.randn(4, 16) if make is Wide else torch.rand(2, 1, 12, 12)
    exact = gradients(energy, Exact(), x)
    with torch.autocast("cpu", torch.bfloat16):
        found, same = gradients(energy, FiniteDifference(), x), gradients(energy, Exact(), x)
    assert distance(found, same) <= 0.02
    assert distance(found, exact) <= 0.02
    assert distance(same, exact) > 1e-5  # autocast did lower something


SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Exact, FiniteDifference
from spen.rules import Momentum

class Net(Energy):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
    def forward(self, y, x):
        return (torch.tanh(self.net(y)) - x).square().sum(1)

dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
try:
    energy = Net()
    fully_shard(energy, mesh=dist.init_device_mesh("cpu", (1,)))
    x = torch.randn(2, 3)
    for strategy in (FiniteDifference(), Exact()):
        try:
            spen.Minimizer(Reals(), Momentum(2, 0.1), strategy)(energy, x, x)
        except ValueError as error:
            print(error)
finally:
    dist.destroy_process_group()
"""


def in_a_fresh_process(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sharded_energy_is_refused(tmp_path: Path) -> None:
    lines = in_a_fresh_process(SHARDED, str(tmp_path / "store")).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("the energy is sharded by fully_shard") for line in lines), lines


# ── importing ──


@pytest.mark.parametrize("name", ["SPEN", "Minimizer", "Energy"])
def test_importing_leaves_the_compiler_out(name: str) -> None:
    code = f"""
import sys
import torch
before = set(sys.modules)
import spen
spen.{name}
heavy = ("torch._inductor", "torch._dynamo", "sympy", "torch.fx.experimental")
print(sorted(m for m in set(sys.modules) - before if m.startswith(heavy)))
"""
    assert in_a_fresh_process(code).strip() == "[]"


def test_training_plainly_leaves_the_compiler_out() -> None:
    code = """
import sys
import torch
import spen
from spen.domains import Reals
from spen.energies import Linear
from spen.rules import Momentum
x = torch.randn(2, 3, requires_grad=True)
spen.Minimizer(Reals(), Momentum(2, 0.1))(Linear(), x, x).output.sum().backward()
print(sorted(m for m in sys.modules if m.startswith("torch._inductor")))
"""
    assert in_a_fresh_process(code).strip() == "[]"


def test_softplus_of_another_sharpness() -> None:
    """A number of one of torch's own modules."""

    class Soft(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.soft = nn.Linear(WIDTH, WIDTH), nn.Softplus(beta=1.0)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.soft(self.mix(y) - x).square().sum(1) + F.silu(y).sum(1)

    energy = Soft().double()
    assert_follows(energy, programs(), lambda: setattr(energy.soft, "beta", 3.0))
