"""What ∇E knows is handed to its products: the same gradients, by value, from less work and little memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import spen
from benchmarks.small import label_sets, srl
from benchmarks.transformer import transformer
from spen.descent.potential import Potential
from spen.domains import Reals, Simplex
from spen.energies import Energy, Linear
from spen.gradients import Checkpointed, Compiled, Exact, ForwardOverReverse
from spen.gradients.compiled.fx_nodes import writes
from spen.gradients.compiled.keep import cache_results, only_cached
from spen.gradients.compiled.program import Bound, Program
from spen.gradients.compiled.simplify import simplified
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.testing import check_strategy
from spen.testing.strategy import all_rules, dividing_stop, example_model, gradients_of
from tests.helpers import distance, gradients, prior, saved_for_backward

aten = torch.ops.aten


def bound(energy: nn.Module, x: Tensor, through: Any, *, keep: bool = True) -> Bound:
    potential = Potential.of(energy, x)
    return Bound.of(potential, torch.zeros_like(x), through.product, lambda g, _: g, keep=keep)


def traced(energy: nn.Module, x: Tensor, through: Any, *, keep: bool = True) -> Program:
    return bound(energy, x, through, keep=keep).program


def count(program: Any, *targets: Any) -> int:
    assert isinstance(program, GraphModule)
    return sum(node.target in targets for node in program.graph.nodes)


# ── the gradients ──


@pytest.mark.parametrize(("through", "keep"), [(ForwardOverReverse(), True), (Checkpointed(), 0.5)], ids=str)
def test_convolutions_agree_with_exact(through: Any, keep: float) -> None:
    energy, x = prior().double(), torch.rand(2, 1, 8, 9, dtype=torch.float64)
    strategy = Compiled(through, keep=keep, patience=0)
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-10
    (program,) = strategy.programs(energy)
    assert isinstance(program, Program)
    assert program.kept == 2


@pytest.mark.parametrize(
    ("through", "domain"),
    [(ForwardOverReverse(), Simplex("through_logits")), (Checkpointed(), Reals())],
    ids=["ForwardOverReverse", "Checkpointed"],
)
def test_the_contract_of_a_strategy_holds_with_everything_kept(
    through: Any, domain: spen.protocols.Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rule, early stopping, a penalty on the gradients. The example is so small that nothing would be kept; here
    each product of matrices counts as expensive."""
    monkeypatch.setattr("spen.gradients.compiled.program.cache_results", lambda g, p: cache_results(g, p, density=0.01))
    strategy = Compiled(through, keep=True, patience=0)
    check_strategy(strategy, tolerance=1e-8, domains=[domain])
    made = [p for energy in strategy._slots for p in strategy.programs(energy)]
    assert all(isinstance(p, Program) and p.kept > 0 for p in made)


@pytest.mark.parametrize("problem", [srl, label_sets, transformer], ids=lambda f: f.__name__)
def test_energies_of_the_tasks_agree_with_exact(problem: Any) -> None:
    sizes: dict[str, dict[str, Any]] = {
        "srl": {"batch": 2, "candidates": 4, "roles": 8, "words": 8, "vocabulary": 50},
        "label_sets": {"batch": 4, "inputs": 20, "labels": 160},
        "transformer": {"batch": 2, "positions": 160, "width": 16, "layers": 1, "heads": 2, "fused": False},
    }
    exact = problem("cpu", **sizes[problem.__name__]).converted(torch.float64)
    strategy = Compiled(keep=True, patience=0)
    kept = exact.with_strategy(strategy)
    found = exact.gradients(exact.objective(kept, exact.x, exact.target))
    expected = exact.gradients(exact.objective(exact.with_strategy(Exact()), exact.x, exact.target))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max() + 1e-30))
    (program,) = strategy.programs(kept.energy)
    assert isinstance(program, Program)
    assert program.kept > 0


def test_early_stopping_and_penalties_with_a_share_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spen.gradients.compiled.program.cache_results", lambda g, p: cache_results(g, p, density=0.01))
    rule = all_rules()[1]
    stop, objective = dividing_stop(Reals(), rule), EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
    found, exact = (
        gradients_of(*example_model(Reals(), rule, strategy, stop, keep_gradients=True), objective)
        for strategy in (Compiled(keep=0.5, patience=0), Exact())
    )
    for name, value in exact.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


def test_a_retained_graph_can_be_used_twice() -> None:
    energy, x = prior().double(), torch.rand(2, 1, 8, 9, dtype=torch.float64)
    minimizer = spen.Minimizer(Reals(), GradientDescent(3, 0.02), Compiled(keep=True, patience=0))
    total = minimizer(energy, x, torch.zeros_like(x)).output.square().sum()
    first = torch.autograd.grad(total, list(energy.parameters()), retain_graph=True)
    second = torch.autograd.grad(total, list(energy.parameters()))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(total, list(energy.parameters()))


def test_parameters_may_change_in_place() -> None:
    energy, strategy = prior().double(), Compiled(keep=True, patience=0)
    x = torch.rand(2, 1, 8, 9, dtype=torch.float64)
    gradients(energy, strategy, x)
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(1.1)
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-10


# ── memory ──


def test_the_backward_pass_lets_go_of_what_it_has_used() -> None:
    """The last steps are kept, and each one's results are gone before those of the step before are asked for."""
    energy, strategy = prior(), Compiled(keep=0.75, patience=0)
    x = torch.rand(2, 1, 8, 9)
    minimizer = spen.Minimizer(Reals(), GradientDescent(4, 0.02), strategy)
    minimizer(energy, x, torch.zeros_like(x))
    (program,) = strategy.programs(energy)
    assert isinstance(program, Program)
    held: list[int] = []
    product = program.product

    def watched(tensors: Any, potential: Potential, point: Tensor, direction: Tensor, *kept: Tensor) -> Any:
        held.append(saved.bytes)
        assert len(kept) == (2 if len(held) <= 3 else 0)
        return product(tensors, potential, point, direction, *kept)

    program.product = watched  # type: ignore[method-assign]
    with saved_for_backward() as saved:
        total = minimizer(energy, x, torch.zeros_like(x)).output.square().sum()
    total.backward()
    assert len(held) == 4
    assert held == sorted(held, reverse=True)


# ── what is kept ──


def test_two_results_replace_two_convolutions() -> None:
    """The wide convolution and its input gradient are kept; the first layer, 1 → 32 channels, is computed again."""
    energy, x = prior(32, 7), torch.rand(2, 1, 8, 9)
    with_all, with_kept = (traced(energy, x, ForwardOverReverse(), keep=k) for k in (False, True))
    assert (with_all.kept, with_kept.kept) == (0, 2)
    assert count(with_all._product, aten.convolution.default) == 6
    assert count(with_kept._product, aten.convolution.default) == 4  # nor is E summed up: only ∇E is asked for
    before, after = (count(p._product, aten.convolution_backward.default) for p in (with_all, with_kept))
    assert after == before - 1
    shapes = [tuple(t.shape) for t in bound(energy, x, ForwardOverReverse()).gradient(Potential.of(energy, x), x)[2:]]
    assert shapes == [(2, 32, 8, 9)] * 2


def test_nothing_is_kept_where_nothing_is_expensive() -> None:
    x = torch.rand(3, 4)
    assert traced(Linear(), x, ForwardOverReverse()).kept == 0
    energy, image = prior(4, 3), torch.rand(2, 1, 8, 9)
    program = traced(energy, image, ForwardOverReverse())
    assert program.kept == 0
    assert len(bound(energy, image, ForwardOverReverse()).gradient(Potential.of(energy, image), image)) == 2


class Averaged(Energy):
    """Σ tanh(mean over n of y A)."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(256, 64) / 16)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.tanh((y @ self.matrix).mean(1)).sum(1)


def test_the_expensive_product_is_kept_and_nothing_else() -> None:
    energy, y = Averaged(), torch.randn(2, 50, 256)
    (kept,) = bound(energy, y, Checkpointed()).gradient(Potential.of(energy, y), y)[2:]
    assert torch.allclose(kept.flatten(), (y @ energy.matrix).flatten(), atol=1e-5)
    assert distance(gradients(energy.double(), Compiled(Checkpointed(), keep=True, patience=0), y.double()),
                    gradients(energy, Exact(), y.double())) < 1e-10  # fmt: skip


def pair(function: Any) -> tuple[GraphModule, GraphModule]:
    y, w = torch.rand(64, 256), torch.rand(256, 64)

    def gradient(at: Tensor, weight: Tensor) -> list[Tensor]:
        return [function(at, weight), at.sum(1)]

    def product(at: Tensor, direction: Tensor, weight: Tensor) -> list[Tensor]:
        return [function(at, weight) @ direction.t()[:64]]

    return simplified(make_fx(gradient)(y, w)), simplified(make_fx(product)(y, torch.rand(64, 256), w))


def test_random_numbers_are_drawn_anew() -> None:
    first, second = pair(lambda y, w: F.dropout(y, 0.5) @ w)
    assert cache_results(first, second) == 0
    first, second = pair(lambda y, w: y @ w)
    assert cache_results(first, second) == 1


def test_programs_that_write_are_left_alone() -> None:
    def function(y: Tensor, w: Tensor) -> Tensor:
        box = torch.zeros(64, 64)
        box.copy_(y @ w)
        return box

    assert cache_results(*pair(function)) == 0


def test_writes_that_nobody_sees_are_no_hindrance() -> None:
    """Forward mode divides in place below a softmax; the traced program does not."""

    class Soft(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(160, 160, dtype=torch.float64) / 10)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return (torch.softmax(y @ self.matrix, -1) * x).sum(1)

    energy, x = Soft(), torch.rand(3, 160, dtype=torch.float64)
    program = traced(energy, x, ForwardOverReverse())
    assert not any(writes(node) for node in program._product.graph.nodes)  # type: ignore[attr-defined]
    assert program.kept > 0
    assert distance(gradients(energy, Compiled(keep=True, patience=0), x), gradients(energy, Exact(), x)) < 1e-10


def test_constants_are_compared_by_value() -> None:
    scale = torch.rand(256)
    assert cache_results(*pair(lambda y, w: (y * torch.tensor([2.0])) @ w)) == 1
    first, _ = pair(lambda y, w: (y * torch.tensor([2.0])) @ w)
    _, second = pair(lambda y, w: (y * torch.tensor([3.0])) @ w)
    assert cache_results(first, second) == 0
    assert cache_results(*pair(lambda y, w: (y * scale) @ w)) == 1


def test_the_kept_results_alone() -> None:
    first, second = pair(lambda y, w: (y @ w).exp())
    kept = cache_results(first, second)
    y, w, v = torch.rand(64, 256), torch.rand(256, 64), torch.rand(64, 256)
    _, _, *known = first(y, w)
    again = only_cached(first, kept)(y, w)
    assert len(again) == len(known) == 1
    torch.testing.assert_close(again[0], known[0])
    torch.testing.assert_close(second(y, v, w, *known)[0], (y @ w).exp() @ v.t()[:64])
    assert count(only_cached(first, kept), aten.sum.dim_IntList) == 0
    assert count(second, aten.mm.default) == 1


def test_misuse_is_explained() -> None:
    with pytest.raises(ValueError, match="keep is the share of the steps that are kept, from 0 to 1, not 1.5"):
        Compiled(keep=1.5)
    assert str(Compiled(keep=True)) == "Compiled(ForwardOverReverse(), keep=1)"
    assert str(Compiled(keep=0.75)) == "Compiled(ForwardOverReverse(), keep=0.75)"


def test_attributes_in_lists_are_seen() -> None:
    class Listed(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [1.0, 2.0]
            self.weight = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return sum(s * self.weight * (y - x).square().flatten(1).sum(1).square() for s in self.scales)  # type: ignore[return-value]

    energy, strategy, x = Listed(), Compiled(patience=0), torch.rand(3, 4, dtype=torch.float64)
    gradients(energy, strategy, x)
    energy.scales[1] = 0.5
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-10
