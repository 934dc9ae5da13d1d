"""Rules that draw or remember, hooks, and energies whose gradient is not what it seems: by value, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

import spen
from spen.domains import Box, Reals
from spen.energies import Energy
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    Implicit,
    Truncated,
)
from spen.gradients.compiled.errors import NotTraceable
from spen.gradients.second_order import NotTwiceDifferentiable
from spen.protocols import Domain, GradientStrategy, StepRule
from spen.rules import GradientDescent, LearnedOptimizer

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TWO_PASSES = FiniteDifference(doubled=False)
FUSED = Compiled(patience=0)
BACKWARD = Compiled(Checkpointed(), patience=0)
REPLAYED = [Checkpointed(), FiniteDifference(), TWO_PASSES, ForwardOverReverse(), FUSED, BACKWARD]


class Net(Energy):
    """⟨c, tanh(A y)⟩ + ½‖y − x‖²."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c = nn.Linear(4, 6).double(), nn.Linear(6, 1, bias=False).double()

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.top(torch.tanh(self.a(y)), y, features)

    def top(self, h: Tensor, y: Tensor, features: Tensor) -> Tensor:
        return self.c(h).squeeze(1) + 0.5 * (y - features).square().sum(1)


def gradients(
    energy: Energy, strategy: GradientStrategy, rule: StepRule | None = None, domain: Domain | None = None
) -> dict[str, Tensor]:
    energy.zero_grad()
    minimizer = spen.Minimizer(domain or Reals(), rule or GradientDescent(4, 0.2), strategy)
    torch.manual_seed(2)
    minimizer(energy, X, X).output.square().sum().backward()
    return {name: p.grad.clone() for name, p in energy.named_parameters() if p.grad is not None}


def agree(make: Callable[[], Energy], strategy: GradientStrategy, **parts: Any) -> None:
    found, expected = (gradients(make(), s, **parts) for s in (strategy, Exact()))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-8, msg=name)


# ── rules ──


class Langevin(GradientDescent):
    """Adds noise to each step."""

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        return self.rates()[t] * gradient + 0.3 * torch.randn_like(z), (gradient,)


class Dropped(GradientDescent):
    """Leaves coordinates out."""

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        return self.rates()[t] * nn.functional.dropout(gradient, 0.5), (gradient,)


class Remembering(GradientDescent):
    """Keeps a mean of squares in a buffer instead of its state."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps, 0.2)
        self.register_buffer("mean", torch.zeros(3, 4, dtype=torch.float64))

    def begin(self, z: Tensor) -> Any:
        self.mean.zero_()
        return super().begin(z)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        self.mean.mul_(0.5).add_(gradient.detach() ** 2, alpha=0.5)
        return self.rates()[t] * gradient / (self.mean.sqrt() + 0.1), (gradient,)


@pytest.mark.parametrize("kind", [Langevin, Dropped])
@pytest.mark.parametrize("strategy", [*REPLAYED, Compiled(patience=0, graphs=True)], ids=str)
def test_a_rule_that_draws_draws_the_same_numbers_again(strategy: GradientStrategy, kind: type) -> None:
    agree(Net, strategy, rule=kind(4, 0.2), domain=Box())
    backtracking = kind(4, 0.2)
    backtracking.backtracks = 2
    agree(Net, strategy, rule=backtracking)


def test_the_last_steps_draw_their_own_numbers() -> None:
    found = [gradients(Net(), s, rule=Dropped(4, 0.2)) for s in (Truncated(4), Exact())]
    torch.testing.assert_close(found[0]["a.weight"], found[1]["a.weight"])


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("strategy", REPLAYED, ids=str)
def test_a_rule_that_remembers_elsewhere_is_refused(strategy: GradientStrategy, steps: int) -> None:
    with pytest.raises(RuntimeError, match="the rule Remembering or the domain Reals takes another step in the backw"):
        gradients(Net(), strategy, rule=Remembering(steps))


# ── hooks of parameters ──


@pytest.mark.parametrize("hook", [lambda g: 2 * g, lambda g: g.clamp(-0.05, 0.05)], ids=["twice", "clamped"])
@pytest.mark.parametrize("strategy", [*REPLAYED, Auto()], ids=str)
def test_hooks_of_parameters_are_called_once(strategy: GradientStrategy, hook: Callable[[Tensor], Tensor]) -> None:
    calls = []

    def noted(g: Tensor) -> Tensor:
        calls.append(g)
        return hook(g)

    def hooked() -> Net:
        energy = Net()
        energy.a.weight.register_hook(noted)
        return energy

    agree(hooked, strategy)
    assert len(calls) == 2, "once for each of the two strategies"


def test_hooks_of_rates_and_of_a_minimiser_are_called_once() -> None:
    for strategy in (Exact(), Checkpointed(), FUSED):
        rule = GradientDescent(4, 0.2, learn_rates=True).double()
        gradients(Net(), strategy, rule)
        plain = rule.rates.log.grad.clone()
        rule.zero_grad()
        rule.rates.log.register_hook(lambda g: 2 * g)
        gradients(Net(), strategy, rule)
        torch.testing.assert_close(rule.rates.log.grad, 2 * plain)
    plain, doubled = Net(), Net()
    doubled.a.weight.register_hook(lambda g: 2 * g)
    for energy in (plain, doubled):
        minimizer = spen.Minimizer(Reals(), GradientDescent(500, 0.5), Implicit(), spen.RelativeChange(1e-12))
        minimizer(energy, X, X).output.square().sum().backward()
    torch.testing.assert_close(doubled.a.weight.grad, 2 * plain.a.weight.grad)


def test_parameters_frozen_before_the_backward_pass_get_nothing() -> None:
    for strategy in REPLAYED:
        energy = Net()
        loss = spen.Minimizer(Reals(), GradientDescent(4, 0.2), strategy)(energy, X, X).output.square().sum()
        energy.requires_grad_(False)
        loss.backward()
        assert all(p.grad is None and not p.requires_grad for p in energy.parameters())


# ── energies ──


class Weighted(Net):
    """Weights that do not follow y, computed without a graph."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        with torch.no_grad():
            weights = torch.softmax(self.a(y), 1)
        return (weights * torch.tanh(self.a(y))).sum(1) + 0.5 * (y - features).square().sum(1)


class Detached(Net):
    """The same by detach."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        weights = torch.softmax(self.a(y), 1).detach()
        return (weights * torch.tanh(self.a(y))).sum(1) + 0.5 * (y - features).square().sum(1)


class Hooked(Net):
    """Half of a gradient is thrown away."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        h = torch.tanh(self.a(y)) * 1
        h.register_hook(lambda g: 0.5 * g)
        return self.top(h, y, features)


class Drawing(Net):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        noise = torch.randn(y.shape, generator=self.generator, dtype=y.dtype)
        return super().forward(y, features) + (noise * y).sum(1)


NOT_THE_DERIVATIVE = "is not the derivative of E, so finite differences cannot differentiate it: it detaches something"


@pytest.mark.parametrize("make", [Weighted, Detached, Hooked, Drawing])
@pytest.mark.parametrize("strategy", [FiniteDifference(), TWO_PASSES], ids=["doubled", "two passes"])
def test_finite_differences_refuse_what_is_not_the_derivative(make: Any, strategy: GradientStrategy) -> None:
    with pytest.raises(RuntimeError, match=f"dE/dy of the energy {make.__name__} {NOT_THE_DERIVATIVE}"):
        gradients(make(), strategy)


@pytest.mark.parametrize("make", [Weighted, Hooked])
def test_forward_mode_refuses_what_double_backprop_differentiates_otherwise(make: Any) -> None:
    agree(make, Checkpointed())
    for strategy in (ForwardOverReverse(), Truncated(2, ForwardOverReverse())):
        with pytest.raises(NotTwiceDifferentiable, match=f"the energy {make.__name__} otherwise than double backprop"):
            gradients(make(), strategy)


def test_programs_refuse_other_second_derivatives() -> None:
    with pytest.raises(NotTraceable, match="Weighted cannot be compiled: its program has another second derivative"):
        gradients(Weighted(), FUSED)
    agree(Weighted, BACKWARD)
    agree(Detached, FUSED)
    with pytest.raises(NotTraceable, match=r"a part that is traced as a function of its own \(register_hook\)"):
        gradients(Hooked(), FUSED)


class Lazy(Net):
    """A layer that gets its shape from y."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.LazyLinear(3, dtype=torch.float64)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return super().forward(y, features) + torch.tanh(self.late(y)).sum(1)


class Scripted(Net):
    """A layer of TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.late = torch.jit.script(nn.Linear(4, 3).double())

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return super().forward(y, features) + torch.tanh(self.late(y)).sum(1)


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return nn.functional.softplus(weight)


@pytest.mark.parametrize("strategy", [Auto(), *REPLAYED[:4]], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*")
def test_lazy_layers_and_layers_of_torchscript(strategy: GradientStrategy) -> None:
    agree(Lazy, strategy)
    agree(Scripted, strategy)


@pytest.mark.parametrize("strategy", [Exact(), Auto()], ids=str)
def test_weights_that_were_computed_before_keep_their_graph(strategy: GradientStrategy) -> None:
    found = []
    for chosen in (strategy, Checkpointed()):
        energy = Net()
        parametrize.register_parametrization(energy.a, "weight", Positive())
        if chosen is strategy:
            with parametrize.cached():
                loss = spen.Minimizer(Reals(), GradientDescent(4, 0.2), chosen)(energy, X, X).output.sum()
        else:
            loss = spen.Minimizer(Reals(), GradientDescent(4, 0.2), chosen)(energy, X, X).output.sum()
        loss.backward()
        found.append(energy.a.parametrizations.weight.original.grad)
    torch.testing.assert_close(*found)


def test_forward_mode_around_a_descent_is_refused() -> None:
    minimizer, energy = spen.Minimizer(Reals(), GradientDescent(1, 0.2), Exact()), Net()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        for start, features in ((dual, X), (X, dual)):
            with pytest.raises(ValueError, match="forward-mode differentiation .* does not pass through a descent"):
                minimizer(energy, features, start)
        minimizer(energy, X, X)


def test_rules_with_weights_of_their_own_agree_after_all() -> None:
    torch.manual_seed(4)
    agree(Net, Checkpointed(), rule=LearnedOptimizer(4).double())
