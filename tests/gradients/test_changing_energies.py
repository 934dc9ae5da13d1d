"""Energies that settle, count or draw while they are descended, and steps that are small: by value, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals, Simplex
from spen.energies import Energy
from spen.gradients import (
    Checkpointed,
    Compiled,
    Detached,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    Implicit,
    Truncated,
)
from spen.objectives import EndToEnd, squared_error
from spen.protocols import Domain, GradientStrategy
from spen.rules import GradientDescent
from tests.gradients.test_own_types import Net, X, gradients


class Spectral(Energy):
    """Spectral norm in training mode moves its vectors at every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.utils.spectral_norm(nn.Linear(32, 64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(3 * self.a(y)).sum(1) + 0.5 * (y - features).square().sum(1)


@pytest.mark.parametrize("steps", [5, 30, 60])
@pytest.mark.parametrize("strategy", [Checkpointed(), FiniteDifference(), FiniteDifference(doubled=False)], ids=str)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*")
def test_an_energy_that_settles_while_it_is_descended_is_refused(strategy: GradientStrategy, steps: int) -> None:
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    with pytest.raises(RuntimeError, match="the energy Spectral has another value in the backward pass"):
        gradients(Spectral(), strategy, x, GradientDescent(steps, 0.1))


class Normed(Energy):
    """Batch norm in training mode moves its statistics and has the same value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.a(y))).sum(1) + 0.5 * (y - features).square().sum(1)


def test_batch_norm_in_training_mode_is_no_change_of_value() -> None:
    torch.testing.assert_close(gradients(Normed(), Checkpointed()), gradients(Normed(), Exact()), rtol=1e-4, atol=1e-6)


class Rms(GradientDescent):
    """Keeps its mean of squares in an attribute."""

    mean: Any = 0.0

    def begin(self, z: Tensor) -> Any:
        self.mean = torch.zeros_like(z)
        return super().begin(z)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * gradient.detach() ** 2
        return self.rates()[t] * gradient / (self.mean.sqrt() + 1e-8), (gradient,)


@pytest.mark.parametrize("domain", [Reals(), Simplex()], ids=["reals", "simplex"])
@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), FiniteDifference()], ids=str)
def test_small_steps_of_a_rule_that_remembers_elsewhere(strategy: GradientStrategy, domain: Domain) -> None:
    with pytest.raises(RuntimeError, match="the rule Rms or the domain .* takes another step"):
        gradients(Net(), strategy, X.softmax(1), Rms(50, 0.001), domain)


@pytest.mark.parametrize("strategy", [Detached(), Truncated(20), Checkpointed()], ids=str)
def test_examples_that_stop_early_have_the_gradient_that_they_have_alone(strategy: GradientStrategy) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    target = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    model = spen.SPEN(
        energy=Net(),
        init=nn.Identity(),
        minimizer=spen.Minimizer(Reals(), GradientDescent(20, 0.6), strategy, spen.RelativeChange(0.05)),
    )
    loss = EndToEnd(squared_error, weights="last")
    assert len(set(model(x).steps_used.tolist())) > 2

    def gradient(call: Callable[[], Tensor]) -> Tensor:
        model.zero_grad()
        call().backward()
        return torch.cat([p.grad.flatten() for p in model.energy.parameters() if p.grad is not None])

    together = gradient(lambda: loss(model, x, target))
    alone = [gradient(lambda i=i: loss(model, x[i : i + 1], target[i : i + 1])) for i in range(6)]  # type: ignore[misc]
    torch.testing.assert_close(together, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)


class Quartic(Energy):
    """¼(y − mx)⁴ + ½(y − mx)²."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        away = y - self.m * features
        return away.pow(4).sum(1) / 4 + 0.5 * away.square().sum(1)


def test_an_answer_far_from_the_minimiser_is_refused() -> None:
    x = torch.ones(2, 4, dtype=torch.float64)

    def gradient(rate: float) -> Tensor:
        energy = Quartic()
        minimizer = spen.Minimizer(Reals(), GradientDescent(500, rate), Implicit(), spen.RelativeChange(1e-3))
        minimizer(energy, x, 2 * x).output.square().sum().backward()
        assert energy.m.grad is not None
        return energy.m.grad

    torch.testing.assert_close(gradient(0.3), torch.full((4,), 4.0, dtype=torch.float64), rtol=3e-3, atol=0)
    for rate in (1e-4, 1e-2):
        with pytest.raises(RuntimeError, match="the descent stopped far from it, since its steps were small"):
            gradient(rate)


def test_a_minimiser_at_zero_is_a_minimiser() -> None:
    x = torch.ones(2, 4, dtype=torch.float64)
    x[1] = 0
    energy = Quartic()
    minimizer = spen.Minimizer(Reals(), GradientDescent(3000, 0.5), Implicit(), spen.RelativeChange(1e-6))
    minimizer(energy, x, x + 0.5).output.square().sum().backward()
    torch.testing.assert_close(energy.m.grad, torch.full((4,), 2.0, dtype=torch.float64), rtol=1e-4, atol=0)


class Dropped(Net):
    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(y, 0.1), features)


def test_random_energies_have_no_minimiser() -> None:
    with pytest.raises(ValueError, match="the energy Dropped draws random numbers and is another function"):
        gradients(Dropped(), Implicit(), rule=GradientDescent(500, 0.3), stop=spen.RelativeChange(0.5))


class Noisy(GradientDescent):
    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        return self.rates()[t] * nn.functional.dropout(gradient, 0.5), (gradient,)


def test_rule_and_energy_may_both_draw_in_a_search_for_the_step() -> None:
    rule = Noisy(4, 0.2, backtracks=2)
    found, expected = (gradients(Dropped(), s, rule=rule) for s in (Checkpointed(), Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Counted(Net):
    """Draws, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().forward(nn.functional.dropout(y, 0.5), features)


@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), FiniteDifference()], ids=str)
def test_energies_that_draw_and_count(strategy: GradientStrategy) -> None:
    found, expected = (gradients(Counted(), s, rule=GradientDescent(4, 0.2)) for s in (strategy, Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def test_what_a_graph_captures_never_waits_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a truth value of a tensor would be a synchronisation, and nothing would be captured."""
    from spen.gradients.compiled import cuda_graphs
    from tests.gradients.test_cuda_graphs import StandIn

    asked: list[str] = []
    inside: list[bool] = []
    monkeypatch.setattr(cuda_graphs, "Captured", StandIn)
    plain, record, back = torch.Tensor.__bool__, StandIn._record, StandIn._pulled_back

    def noted(tensor: Tensor) -> bool:
        if inside:
            asked.append(str(tensor.shape))
        return plain(tensor)

    def within(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            inside.append(True)
            try:
                return method(*arguments)
            finally:
                inside.pop()

        return called

    monkeypatch.setattr(torch.Tensor, "__bool__", noted)
    monkeypatch.setattr(StandIn, "_record", within(record))
    monkeypatch.setattr(StandIn, "_pulled_back", within(back))
    energy, strategy = Net(), Compiled(patience=0, fuse=False, graphs=True)
    for _ in range(8):
        gradients(energy, strategy)
    slots = strategy._slots[energy].values()
    assert any(recorder.captured for slot in slots for recorder in slot.recorders.values())
    assert asked == []
