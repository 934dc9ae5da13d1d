"""Traced, simplified, fused, captured: the same gradients, by value, from less work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import spen
from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Checkpointed, Compiled, Exact, FiniteDifference, ForwardOverReverse
from spen.gradients.compiled import NotTraceable
from spen.gradients.compiled.program import Bound
from spen.gradients.compiled.simplify import simplified, speaks_to_host
from spen.rules import Momentum
from spen.testing.strategy import all_domains, all_rules, dividing_stop, example_model
from tests.helpers import gradients, prior

aten = torch.ops.aten


class Pull(Energy):
    """½‖a·y − x‖⁴: an attribute that is a number, and curvature that depends on y."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = a
        self.weight = nn.Parameter(torch.tensor(0.7))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return 0.5 * self.weight * (self.a * y - x).flatten(1).square().sum(1).square()


def product_graph(through: Callable[[Potential, Tensor, Tensor], Any]) -> torch.fx.GraphModule:
    energy, y = prior(size=3), torch.rand(2, 1, 6, 7)
    potential = Potential.of(energy, None)

    def product(at: Tensor, direction: Tensor) -> list[Tensor]:
        first, rest = through(potential, at, direction)
        return [t for t in (first, *rest) if t is not None]

    return make_fx(product)(y, torch.ones_like(y))


def count(program: torch.fx.GraphModule, *targets: Any) -> int:
    return sum(node.target in targets for node in program.graph.nodes)


def test_products_with_zero_are_dropped() -> None:
    """Two forward passes and, for each layer, one input and one weight gradient of primal and tangent each."""
    traced = product_graph(ForwardOverReverse().product)
    y, v = torch.rand(2, 1, 6, 7), torch.randn(2, 1, 6, 7)
    before = traced(y, v)
    assert count(traced, aten.convolution.default) == 9
    assert count(traced, aten.convolution_backward.default) > 10
    simple = simplified(traced)
    assert count(simple, aten.convolution.default) == 6
    assert count(simple, aten.convolution_backward.default) <= 10
    for a, b in zip(before, simple(y, v), strict=True):
        torch.testing.assert_close(a, b)


def test_a_filled_tensor_of_zeros_is_no_zero() -> None:
    def function(x: Tensor) -> Tensor:
        box = torch.zeros(3)
        box.copy_(x)
        return box * 2

    program = simplified(make_fx(function)(torch.arange(3.0)))
    assert program(torch.tensor([1.0, 2.0, 5.0])).tolist() == [2.0, 4.0, 10.0]


@pytest.mark.parametrize("through", [ForwardOverReverse(), Checkpointed()], ids=str)
def test_convolutions_agree_with_exact(through: Any) -> None:
    energy, x = prior(size=3).double(), torch.rand(2, 1, 8, 9, dtype=torch.float64)
    exact = gradients(energy, Exact(), x)
    found = gradients(energy, Compiled(through, patience=0), x)
    assert float((found - exact).norm() / exact.norm()) < 1e-10


def test_fused_programs_agree_with_exact() -> None:
    energy, x = prior(size=3), torch.rand(2, 1, 8, 9)
    exact = gradients(energy, Exact(), x, steps=2)
    found = gradients(energy, Compiled(patience=0, fuse=True), x, steps=2)
    assert 0 < float((found - exact).norm() / exact.norm()) < 1e-5


def test_bfloat16_operands_change_the_gradient_a_little() -> None:
    energy, x = prior(size=3), torch.rand(2, 1, 8, 9)
    exact = gradients(energy, Exact(), x)
    rounded = gradients(energy, Compiled(patience=0, precision=torch.bfloat16), x)
    assert 1e-5 < float((rounded - exact).norm() / exact.norm()) < 2e-2


def test_narrow_layers_keep_their_precision() -> None:
    energy, x = prior(8, 3), torch.rand(2, 1, 8, 9)
    exact = gradients(energy, Exact(), x)
    found = gradients(energy, Compiled(patience=0, precision=torch.bfloat16), x)
    assert float((found - exact).norm() / exact.norm()) < 1e-5


def test_a_shape_is_compiled_when_it_comes_back() -> None:
    energy, strategy = Pull().double(), Compiled(patience=2)
    x = torch.rand(3, 4, dtype=torch.float64)
    minimizer = spen.Minimizer(Reals(), Momentum(3, 0.02), strategy)
    for made in (0, 0, 1, 1):
        minimizer(energy, x, torch.zeros_like(x))
        assert len(strategy.programs(energy)) == made
    minimizer(energy, x[:2], torch.zeros_like(x[:2]))
    assert len(strategy.programs(energy)) == 1  # met once only


def test_no_more_programs_than_allowed() -> None:
    energy, strategy = Pull().double(), Compiled(patience=0, shapes=2)
    minimizer = spen.Minimizer(Reals(), Momentum(3, 0.02), strategy)
    for n in (1, 2, 3, 4):
        x = torch.rand(n, 4, dtype=torch.float64)
        minimizer(energy, x, torch.zeros_like(x))
    assert len(strategy.programs(energy)) == 2


def test_an_attribute_that_changes_is_seen() -> None:
    energy, strategy = Pull(1.0).double(), Compiled(patience=0)
    x = torch.rand(3, 4, dtype=torch.float64)
    first = gradients(energy, strategy, x)
    energy.a = 1.5
    second = gradients(energy, strategy, x)
    assert float((second - first).abs().max()) > 1e-3
    torch.testing.assert_close(second, gradients(energy, Exact(), x))


def test_parameters_may_change_in_place() -> None:
    energy, strategy = Pull().double(), Compiled(patience=0)
    x = torch.rand(3, 4, dtype=torch.float64)
    gradients(energy, strategy, x)
    with torch.no_grad():
        energy.weight.mul_(2)
    torch.testing.assert_close(gradients(energy, strategy, x), gradients(energy, Exact(), x))


class Branching(Energy):
    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        size = y.flatten(1).square().sum(1)
        return size if float(y.sum()) > 0 else 2 * size


def test_an_energy_that_looks_at_values_cannot_be_traced() -> None:
    x = torch.rand(2, 3)
    minimizer = spen.Minimizer(Reals(), Momentum(2, 0.1, learn_rates=True), Compiled(patience=0))
    with pytest.raises(NotTraceable, match="the energy Branching cannot be traced: .*Use the strategy inside Compiled"):
        minimizer(Branching(), x, x)


def test_under_autocast_the_plain_strategy_runs() -> None:
    energy, strategy = prior(size=3), Compiled(patience=0)
    x = torch.rand(2, 1, 8, 9)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(energy, strategy, x)
        plain = gradients(energy, ForwardOverReverse(), x)
    assert not strategy.programs(energy)
    torch.testing.assert_close(found, plain)


def test_misuse_is_explained() -> None:
    for through in (Exact(), FiniteDifference()):
        with pytest.raises(
            ValueError, match=f"goes through ForwardOverReverse.. or Checkpointed.., not {type(through).__name__}"
        ):
            Compiled(through)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="precision must be torch.bfloat16 or None, not torch.float16"):
        Compiled(precision=torch.float16)
    with pytest.raises(ValueError, match="patience ≥ 0 and shapes ≥ 1, not -1 and 32"):
        Compiled(patience=-1)


def test_copies_leave_the_programs_behind() -> None:
    energy, strategy = Pull().double(), Compiled(Checkpointed(), patience=0, shapes=7)
    x = torch.rand(3, 4, dtype=torch.float64)
    gradients(energy, strategy, x)
    for again in (copy.deepcopy(strategy), pickle.loads(pickle.dumps(strategy))):
        assert str(again) == str(strategy) == "Compiled(Checkpointed())"
        assert (again.patience, again.shapes, again.programs(energy)) == (0, 7, [])


def test_what_a_graph_cannot_hold_is_found() -> None:
    def chosen(x: Tensor) -> Tensor:
        return x[x > 0].sum()

    def smooth(x: Tensor) -> Tensor:
        return F.softplus(x).sum()

    x = torch.linspace(-1, 1, 5)
    assert speaks_to_host(make_fx(chosen)(x))
    assert not speaks_to_host(make_fx(smooth)(x))


@pytest.mark.parametrize("domain", all_domains(), ids=str)
def test_a_masked_loop_gives_the_same_path(domain: spen.protocols.Domain) -> None:
    """Early stopping without leaving the loop: outputs, energies, gradients and the steps used."""
    for rule in all_rules():
        model, x, _ = example_model(domain, rule, Exact(), dividing_stop(domain, rule), keep_gradients=True)
        plain, masked = (_trajectory(model, x, masked) for masked in (False, True))
        assert torch.equal(plain.steps_used, masked.steps_used)
        assert torch.equal(plain.converged, masked.converged)
        torch.testing.assert_close(plain.output, masked.output, rtol=0, atol=1e-11)
        torch.testing.assert_close(plain.energies, masked.energies, rtol=0, atol=1e-11)
        for a, b in zip(plain.gradients, masked.gradients, strict=False):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def _trajectory(model: spen.SPEN, x: Tensor, masked: bool) -> spen.Trajectory:
    minimizer, features = model.minimizer, model.features(x)
    descend = Descend(minimizer.domain, minimizer.rule, minimizer.stop, True, masked)
    view = minimizer.domain.output if minimizer.domain.through else (lambda point: point)
    potential, start = Potential.of(model.energy, features, view), model.init(features)
    with torch.no_grad():
        path = descend(potential.detached(), start)
        return spen.Trajectory(path, minimizer.domain, minimizer.rule.steps, potential, start, gradients=True)


def test_a_program_is_for_points_of_one_shape_and_type() -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    potential = Potential.of(Pull().double(), x)
    bound = Bound.of(potential, x, ForwardOverReverse().product, lambda program, _: program)
    words = r"returns examples of shape \(4,\) and torch.float32, but the program was made for \(4,\) and torch.float64"
    with pytest.raises(RuntimeError, match=words):
        bound.gradient(potential, x.float())
