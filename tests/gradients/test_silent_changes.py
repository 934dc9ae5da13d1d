"""What a descent has read and what it cannot differentiate: used as it was, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    Implicit,
)
from spen.gradients.second_order import NotTwiceDifferentiable
from spen.protocols import GradientStrategy
from spen.rules import GradientDescent
from tests.gradients.test_once_differentiable import SquareOnce

X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


class Bowl(Energy):
    """Σ cosh(w b y) + ½(y − F)²."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.2, 1.0, 4, dtype=torch.float64))
        self.register_buffer("b", torch.ones(4, dtype=torch.float64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (torch.cosh(y * self.w * self.b) + 0.5 * (y - features) ** 2).sum(1)


class Counting(Bowl):
    """An energy whose evaluation changes a buffer that is not part of its value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(y, features)


def build(energy: Energy, gradient: GradientStrategy, **parts: object) -> spen.SPEN:
    torch.manual_seed(1)
    layer = nn.Linear(4, 4).double()
    converges = isinstance(gradient, Implicit)
    rule = GradientDescent(2000 if converges else 4, 0.2)
    stop = spen.RelativeChange(1e-12) if converges else None
    domain = parts.get("domain", Reals())
    minimizer = spen.Minimizer(domain, rule, gradient, stop)  # type: ignore[arg-type]
    return spen.SPEN(features=parts.get("features", layer), init=nn.Identity(), energy=energy, minimizer=minimizer)  # type: ignore[arg-type]


REPLAYED = [Checkpointed(), FiniteDifference(), ForwardOverReverse(), Implicit(), Compiled(patience=0)]


def change_buffer(model: spen.SPEN) -> None:
    model.energy.b.mul_(2)


def change_rates(model: spen.SPEN) -> None:
    model.minimizer.rule.rates.log.mul_(2)  # type: ignore[union-attr, operator]


def change_frozen(model: spen.SPEN) -> None:
    with torch.no_grad():
        model.energy.w.mul_(2)  # type: ignore[operator]


@pytest.mark.parametrize("change", [change_buffer, change_rates, change_frozen])
@pytest.mark.parametrize("gradient", REPLAYED, ids=str)
def test_a_change_in_place_before_the_backward_pass_is_an_error(
    gradient: GradientStrategy, change: Callable[[spen.SPEN], None]
) -> None:
    model = build(Bowl(), gradient)
    model.energy.w.requires_grad_(change is not change_frozen)  # type: ignore[union-attr, operator]
    if isinstance(gradient, Implicit) and change is change_rates:
        return  # the minimiser does not depend on them
    loss = model(X).output.square().sum()
    change(model)
    with pytest.raises(RuntimeError, match=r"was changed in\s+place before|modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("gradient", REPLAYED[:-1], ids=str)
def test_what_the_energy_changes_itself_is_no_error(gradient: GradientStrategy) -> None:
    model, plain = build(Counting(), gradient), build(Bowl(), gradient)
    losses = [model(X).output.square().sum() for _ in range(2)]  # two descents before the first backward pass
    for loss in losses:
        loss.backward()
    plain(X).output.square().sum().backward()
    torch.testing.assert_close(model.energy.w.grad, 2 * plain.energy.w.grad, rtol=1e-4, atol=1e-6)


class Reading(Bowl):
    """An energy that reads a tensor which it does not own."""

    def __init__(self, other: Tensor) -> None:
        super().__init__()
        del self.w
        self.__dict__["w"] = other


def test_implicit_refuses_what_it_would_send_no_gradient_to() -> None:
    with pytest.raises(ValueError, match="reads a tensor of shape .* that requires a gradient and is neither"):
        build(Reading(2 * torch.ones(4, dtype=torch.float64, requires_grad=True)), Implicit())(X)


def test_implicit_refuses_an_energy_that_is_differentiable_once() -> None:
    with pytest.raises(NotTwiceDifferentiable, match="SquareOnce can be differentiated only once"):
        build(AlwaysOnce(), Implicit())(X)


class AlwaysOnce(Bowl):
    """An operation without a second derivative."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return super().forward(y, features) + 0.1 * SquareOnce.apply(self.w * y).sum(1)


class Late(Bowl):
    """An operation without a second derivative, from the second step on."""

    @property
    def knows_step(self) -> bool:
        return True

    def forward(self, y: Tensor, features: Tensor, t: Tensor | None = None) -> Tensor:
        value = super().forward(y, features)
        assert t is not None
        return value + (SquareOnce.apply(self.w * y).sum(1) if int(t[0]) else 0)


@pytest.mark.parametrize("gradient", [Exact(), Checkpointed(), ForwardOverReverse()], ids=str)
def test_every_step_of_an_energy_that_knows_it_is_searched(gradient: GradientStrategy) -> None:
    with pytest.raises(NotTwiceDifferentiable, match="SquareOnce can be differentiated only once"):
        build(Late(), gradient)(X)


class Tempered(EntropySmoothed):
    """Not the sum of its terms."""

    def forward(self, y: Tensor, features: Tensor, t: Tensor | None = None) -> Tensor:
        return 3 * super().forward(y, features, t)


def hooked() -> Energy:
    energy = EntropySmoothed(Linear())
    energy.register_forward_hook(lambda module, arguments, value: 3 * value)
    return energy


@pytest.mark.parametrize("energy", [Tempered(Linear()), hooked()], ids=["overridden", "hooked"])
def test_finite_differences_refuse_an_energy_that_is_not_its_terms(energy: Energy) -> None:
    build(energy, Checkpointed(), domain=Simplex())(X).output.square().sum().backward()
    model = build(energy, FiniteDifference(), domain=Simplex())
    with pytest.raises(
        ValueError, match="overrides forward or has a forward hook, so it may not be the sum of its terms"
    ):
        model(X).output.square().sum().backward()
    plain = build(EntropySmoothed(Linear(), 3.0), FiniteDifference(), domain=Simplex())
    plain(X).output.square().sum().backward()


@pytest.mark.parametrize("gradient", [Exact(), Auto()], ids=str)
def test_a_tensor_outside_gets_its_gradient_though_nothing_else_learns(gradient: GradientStrategy) -> None:
    outside = torch.linspace(0.2, 1.0, 4, dtype=torch.float64, requires_grad=True)
    model = build(Reading(2 * outside), gradient, features=nn.Identity())
    (found,) = torch.autograd.grad(model(X).output.square().sum(), outside)
    learned = Bowl()
    with torch.no_grad():
        learned.w.copy_(2 * outside)
    reference = build(learned, Exact(), features=nn.Identity())
    (expected,) = torch.autograd.grad(reference(X).output.square().sum(), learned.w)
    torch.testing.assert_close(found, 2 * expected)


def test_a_tensor_outside_is_refused_by_others_though_nothing_else_learns() -> None:
    outside = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="neither a parameter of the energy nor one of its features"):
        build(Reading(2 * outside), Checkpointed(), features=nn.Identity())(X)


class Inner(Bowl):
    """torch.func inside of an energy, under which tensors cannot be counted."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        def slope(a: Tensor, c: Tensor) -> Tensor:
            return (torch.tanh(self.w * a) * c).sum()

        return torch.vmap(torch.func.grad(slope))(y, features).square().sum(1) + 0.5 * y.square().sum(1)


def test_auto_descends_an_energy_that_uses_torch_func() -> None:
    found, expected = (build(Inner(), gradient) for gradient in (Auto(), Exact()))
    for model in (found, expected):
        model(X).output.square().sum().backward()
    torch.testing.assert_close(found.energy.w.grad, expected.energy.w.grad)
