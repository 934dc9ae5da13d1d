"""What a program refuses, and what may change between a descent and its backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import (
    Checkpointed,
    Compiled,
    Exact,
    ForwardOverReverse,
    GradientStrategy,
)
from spen.gradients.compiled import NotTraceable
from spen.rules import Momentum
from tests.gradients.test_guards import WIDTH, Reading, batch, programs
from tests.helpers import distance, gradients

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
    with pytest.raises(RuntimeError, match="the energy Drifting has another value in the backward pass .*Exact"):
        gradients(Drifting().double(), Checkpointed(), batch())
    with pytest.raises(RuntimeError, match="the energy Drifting otherwise .*, or it changes with every evaluation"):
        gradients(Drifting().double(), ForwardOverReverse(), batch())


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


EXCHANGES: dict[str, Callable[[Switched], Any]] = {  # attributes and their new values
    "training": lambda energy: False,
    "beta": lambda energy: 2.0,
    "act": lambda energy: torch.sin,
    "scale": lambda energy: 2 * energy.scale,
    "plain": lambda energy: 2 * energy.plain,
    "mix": lambda energy: nn.Linear(WIDTH, WIDTH).double(),
    "forward": lambda energy: lambda y, x: y.square().sum(1),
}


@pytest.mark.parametrize("strategy", REPLAYED, ids=str)
def test_the_backward_pass_belongs_to_the_energy_that_ran(strategy: GradientStrategy) -> None:
    energy, rule, x = Switched().double(), Momentum(3, 0.2, decay=0.5), batch()
    wanted = list(energy.parameters())

    def begun(strategy: GradientStrategy) -> Tensor:
        return spen.Minimizer(Reals(), rule, strategy)(energy, x, torch.zeros_like(x)).output.square().sum()

    def agrees(loss: Tensor) -> None:
        now = dict(vars(energy))
        for mine, right in zip(torch.autograd.grad(loss, wanted), exact, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-12)
        assert vars(energy) == now  # as the user left it

    exact = torch.autograd.grad(begun(Exact()), wanted)
    for name, value in EXCHANGES.items():
        loss, before = begun(strategy), getattr(energy, name)
        setattr(energy, name, value(energy))
        agrees(loss)
        setattr(energy, name, before)
    loss, rule.decay = begun(strategy), 0.9
    agrees(loss)
    rule.decay = 0.5
    loss = begun(strategy)
    energy.scale.data = 2 * energy.scale
    if isinstance(strategy, Compiled):
        agrees(loss)
    else:  # seen by its value alone
        with pytest.raises(RuntimeError, match="another value in the backward pass"):
            torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize("strategy", [*REPLAYED, Compiled(patience=0, graphs=True)], ids=str)
def test_tensors_changed_in_place_are_noticed(strategy: GradientStrategy) -> None:
    energy, x = Switched().double(), batch()
    for name in ("scale", "plain"):
        loss = spen.Minimizer(Reals(), Momentum(3, 0.2), strategy)(energy, x, torch.zeros_like(x)).output.square().sum()
        getattr(energy, name).mul_(2)
        noticed = "inplace operation|another value in the backward pass|was changed in place before the backward"
        with pytest.raises(RuntimeError, match=noticed):
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
