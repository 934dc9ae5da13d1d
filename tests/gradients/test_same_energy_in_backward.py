"""The backward pass evaluates the energy that ran: with its parameters, its buffers and its random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

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
    Implicit,
    Truncated,
)
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum

REPLAYED = [Checkpointed(), ForwardOverReverse(), FiniteDifference(), FiniteDifference(doubled=False), Truncated(3)]
PLAIN = REPLAYED[:3]


class Waves(Energy):
    """Σ cos(A (dropped y)) + |y − f|²/2 with a buffer, and dropout where it is asked for."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.drop = drop
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        seen = F.dropout(y, self.drop, self.training) if self.drop else y
        return torch.cos(self.mix(seen)).sum(1) + self.scale * (y - features).square().sum(1)


def _model(
    gradient: GradientStrategy | None, drop: float = 0.0, stop: spen.RelativeChange | None = None, **options: Any
) -> spen.SPEN:
    torch.manual_seed(2)
    rule = Momentum(3, 0.2, decay=0.5, learn_rates=True)
    minimizer = spen.Minimizer(Reals(), rule, gradient, stop, **options)
    return spen.SPEN(features=nn.Linear(3, 4), init=nn.Linear(4, 4), energy=Waves(drop), minimizer=minimizer).double()


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (3, 4))  # type: ignore[return-value]


class Loss(nn.Module):
    """The objective as a module around the model, for functional_call."""

    def __init__(self, model: spen.SPEN) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        return EndToEnd(squared_error)(self.model, *_batch())


def _assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-6) -> None:
    assert len(found) == len(expected)
    for mine, right in zip(found, expected, strict=True):
        assert mine is not None
        assert torch.allclose(mine, right, rtol=0, atol=tolerance)
        assert float(right.abs().max()) > 1e-3


@pytest.mark.parametrize(
    "strategy", [Exact(), *REPLAYED, Compiled(patience=0), Compiled(patience=0, graphs=True)], ids=str
)
def test_parameters_changed_in_place_are_noticed(strategy: GradientStrategy) -> None:
    """An optimiser's step while another loss is pending: there is no gradient to be had any more."""
    loss = Loss(model := _model(strategy))()
    with torch.no_grad():
        model.energy.mix.weight.mul_(3)  # type: ignore[union-attr, operator]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_implicit_gradient_notices_too() -> None:
    minimizer = spen.Minimizer(Reals(), GradientDescent(200, 0.5), Implicit(), spen.RelativeChange(1e-9))
    energy = Waves().double()
    nn.init.normal_(energy.mix.weight, std=0.1)
    loss = minimizer(energy, _batch()[1], torch.zeros(5, 4, dtype=torch.float64)).output.sum()
    with torch.no_grad():
        energy.mix.weight.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def _called_with_other_tensors(strategy: GradientStrategy) -> list[Tensor]:
    module = Loss(_model(strategy))
    others = {n: (1.5 * p.detach()).requires_grad_() for n, p in module.named_parameters()}
    loss = functional_call(module, {**others, "model.energy.scale": torch.tensor(0.2, dtype=torch.float64)})
    bars = torch.autograd.grad(loss, list(others.values()), allow_unused=True)
    assert all(isinstance(p, nn.Parameter) for p in module.parameters())
    return list(bars)


@pytest.mark.parametrize("strategy", [*REPLAYED, Compiled(patience=0), Compiled(patience=0, graphs=True)], ids=str)
def test_a_functional_call_may_be_over_when_the_backward_pass_begins(strategy: GradientStrategy) -> None:
    _assert_same(_called_with_other_tensors(strategy), _called_with_other_tensors(Exact()))


def test_an_implicit_gradient_of_a_functional_call() -> None:
    class Around(nn.Module):
        def __init__(self, gradient: GradientStrategy) -> None:
            super().__init__()
            self.energy = Waves().double()
            self.minimizer = spen.Minimizer(Reals(), GradientDescent(300, 0.3), gradient, spen.RelativeChange(1e-12))

        def forward(self) -> Tensor:
            return self.minimizer(self.energy, _batch()[1], torch.zeros(5, 4, dtype=torch.float64)).output.sum()

    def gradients(strategy: GradientStrategy) -> list[Tensor]:
        weight = torch.linspace(-0.4, 0.4, 16, dtype=torch.float64).view(4, 4).requires_grad_()
        return list(torch.autograd.grad(functional_call(Around(strategy), {"energy.mix.weight": weight}), [weight]))

    torch.manual_seed(0)
    expected = gradients(Exact())
    torch.manual_seed(0)
    _assert_same(gradients(Implicit()), expected)


def _replica(module: nn.Module) -> nn.Module:
    """What nn.DataParallel makes of a module on another GPU."""
    parts = list(module.modules())
    copies = {part: part._replicate_for_data_parallel() for part in parts}  # type: ignore[operator]
    for part in parts:
        for name, child in part.named_children():
            setattr(copies[part], name, copies[child])
        for name, tensor in part.named_parameters(recurse=False):
            setattr(copies[part], name, tensor * 1.0)
    copy: nn.Module = copies[module]
    return copy


@pytest.mark.parametrize("strategy", [*REPLAYED, Compiled(patience=0)], ids=str)
def test_copies_of_data_parallel_are_refused(strategy: GradientStrategy) -> None:
    sentence = (
        r"nn\.DataParallel hands out copies without parameters, .* DistributedDataParallel, or gradient=Exact\(\)"
    )
    with pytest.raises(ValueError, match=sentence):
        Loss(_replica(_model(strategy)))()  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [Exact(), Auto()], ids=str)
@pytest.mark.parametrize("frozen", [False, True], ids=["all learns", "the energy alone learns"])
def test_copies_of_data_parallel_train_with_exact(strategy: GradientStrategy, frozen: bool) -> None:
    def gradients(make: Callable[[nn.Module], nn.Module], gradient: GradientStrategy) -> list[Tensor]:
        model = _model(gradient)
        if frozen:
            model.requires_grad_(False)
            model.energy.requires_grad_(True)
        Loss(make(model))().backward()  # type: ignore[arg-type]
        return [p.grad for p in model.energy.parameters()]  # type: ignore[misc]

    _assert_same(gradients(_replica, strategy), gradients(lambda model: model, Exact()))


def _dropping(
    strategy: GradientStrategy, stop: spen.RelativeChange | None = None, calls: int = 3, **options: Any
) -> list[Tensor]:
    """The gradients of the last of several calls, each from the same seed."""
    model = _model(strategy, 0.4, stop, **options)
    objective = EndToEnd(squared_error, gradient_penalty=0.1 if options else 0.0)
    for _ in range(calls):
        torch.manual_seed(3)
        bars = torch.autograd.grad(objective(model, *_batch()), list(model.parameters()))
    after = torch.rand(1)
    torch.manual_seed(3)
    model(_batch()[0])
    assert torch.equal(torch.rand(1), after)  # the backward pass draws nothing that others would draw
    return list(bars)


@pytest.mark.parametrize(
    ("strategy", "calls"),
    [
        *((strategy, calls) for strategy in REPLAYED for calls in (1, 2)),
        *((strategy, 4) for strategy in (Compiled(), Compiled(keep=True), Compiled(graphs=True))),
    ],
    ids=str,
)
def test_dropout_is_drawn_once(strategy: GradientStrategy, calls: int) -> None:
    """The masks of the way there are those of the way back."""
    _assert_same(_dropping(strategy, calls=calls), _dropping(Exact()))


@pytest.mark.parametrize("strategy", [*PLAIN, Truncated(3)], ids=str)
def test_dropout_where_examples_leave_the_batch(strategy: GradientStrategy) -> None:
    stop = spen.RelativeChange(0.2)
    with torch.no_grad():
        torch.manual_seed(3)
        used = _model(Exact(), 0.4, stop)(_batch()[0]).steps_used.tolist()
    assert len(set(used)) > 1, used
    options = {"stop": stop, "keep_gradients": True}
    _assert_same(_dropping(strategy, **options), _dropping(Exact(), **options))


def test_truncation_and_dropout() -> None:
    """Two examples stop after one step, which counts for them alone: all five were there when masks were drawn."""
    energy, features, start = Waves(0.4).double(), _batch()[1], torch.zeros(5, 4, dtype=torch.float64)
    minimizer = spen.Minimizer(Reals(), GradientDescent(3, 0.2), Truncated(2), spen.RelativeChange(0.15))

    def moved(y: Tensor, rows: Tensor) -> Tensor:
        part = y[rows].requires_grad_() if not y.requires_grad else y[rows]
        (slope,) = torch.autograd.grad(energy(part, features[rows]).sum(), part, create_graph=True)
        return y.index_copy(0, rows, part - 0.2 * slope)

    torch.manual_seed(3)
    trajectory = minimizer(energy, features, start + 1.0)
    trajectory.output.square().sum().backward()
    found = energy.mix.weight.grad.clone()
    used = trajectory.steps_used
    assert set(used.tolist()) == {1, 3}, used
    torch.manual_seed(3)
    going = (used == 3).nonzero().squeeze(1)
    y = moved(start + 1.0, torch.arange(5))
    y = y.index_copy(0, going, y[going].detach())
    for _ in range(2):
        y = moved(y, going)
    energy.zero_grad()
    y.square().sum().backward()
    _assert_same([found], [energy.mix.weight.grad])


def test_the_first_trial_of_a_second_derivative_draws_nothing() -> None:
    model = _model(Exact(), 0.4)
    torch.manual_seed(3)
    first = model(_batch()[0]).output
    torch.manual_seed(3)
    assert torch.equal(model(_batch()[0]).output, first)
