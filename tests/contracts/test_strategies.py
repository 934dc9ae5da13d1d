"""Strategy × domain × rule: parameters, features, Init and rates, by value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spen import Minimizer, RelativeChange
from spen.domains import Domain, Reals
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
from spen.protocols import StepRule
from spen.rules import GradientDescent, Momentum
from spen.testing import check_strategy
from spen.testing.strategy import all_domains, all_rules, dividing_stop, example_model, gradients_of

STRATEGIES: list[tuple[GradientStrategy, float]] = [
    (Checkpointed(), 1e-8),
    (ForwardOverReverse(), 1e-8),
    (FiniteDifference(), 1e-5),
    (FiniteDifference(doubled=False), 1e-5),
    (Truncated(4), 1e-8),
    (Truncated(4, through=ForwardOverReverse()), 1e-8),
    (Auto(), 1e-5),
    (Compiled(patience=0), 1e-8),
    (Compiled(Checkpointed(), patience=0), 1e-8),
]


# All strategies share the backward pass through a domain: one of each kind is enough for the others.
EVERYWHERE = ("Checkpointed()", "ForwardOverReverse()", "FiniteDifference()")
FEW = ('Box(update="projected")', 'Box(update="through_logits")', 'Simplex(update="logits")')
CASES = [
    (strategy, tolerance, domain)
    for strategy, tolerance in STRATEGIES
    for domain in all_domains()
    if str(strategy) in EVERYWHERE or str(domain) in FEW
]


@pytest.mark.parametrize(("strategy", "tolerance", "domain"), CASES, ids=lambda s: str(s)[:40])
def test_strategy_agrees_with_exact(strategy: GradientStrategy, tolerance: float, domain: Domain) -> None:
    check_strategy(strategy, tolerance=tolerance, domains=[domain])


@pytest.mark.parametrize("stopping", [False, True], ids=["fixed", "stopping"])
@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("domain", all_domains(), ids=str)
def test_exact_agrees_with_numerical_differentiation(domain: Domain, rule: StepRule, stopping: bool) -> None:
    """Along random directions in every parameter and in x: (L(θ + εd) − L(θ − εd)) / 2ε = ⟨∇L, d⟩."""
    stop = dividing_stop(domain, rule) if stopping else None
    model, x, target = example_model(domain, rule, Exact(), stop, keep_gradients=True)
    objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
    gradients = gradients_of(model, x, target, objective)
    named: dict[str, Tensor] = {**dict(model.named_parameters()), "x": x}
    # By themselves: an early stop that flips would show up as a jump of one of them only.
    for name, tensor in named.items():
        direction = torch.randn_like(tensor)
        reach = 1e-6

        def moved(sign: int, tensor: Tensor = tensor, step: Tensor = reach * direction) -> float:
            with torch.no_grad():
                tensor.add_(sign * step)
                value = float(objective(model, x, target))
                tensor.sub_(sign * step)
            return value

        slope = (moved(1) - moved(-1)) / (2 * reach)
        claimed = float((gradients[name] * direction).sum())
        assert slope == pytest.approx(claimed, abs=2e-7, rel=1e-4), name


class WithConstants(Energy):
    """Its bias, the last bias of its network and one feature shift E, and have no effect on y."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 1))
        self.bias = nn.Parameter(torch.zeros(()))
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, y: Tensor, features: tuple[Tensor, Tensor]) -> Tensor:
        pull, shift = features
        return self.net(y).squeeze(1) + (y - pull).square().sum(1) + shift.sum(1) + self.bias


@pytest.mark.parametrize(
    "strategy",
    [
        Exact(),
        Checkpointed(),
        ForwardOverReverse(),
        Truncated(3),
        Implicit(),
        Auto(),
        Compiled(patience=0),
        Compiled(Checkpointed(), patience=0),
    ],
    ids=str,
)
def test_what_has_no_effect_on_y_has_no_gradient(strategy: GradientStrategy) -> None:
    """None, as autograd gives where no path leads: an optimiser leaves such a parameter alone, decay included."""
    grads = gradients_with_constants(strategy)
    assert {n for n, g in grads.items() if g is None} == {"shift", "net.2.bias", "bias", "unused"}
    assert all(bool(g.abs().max() > 1e-6) for g in grads.values() if g is not None)


@pytest.mark.parametrize("doubled", [True, False])
def test_finite_differences_give_constants_rounding_errors_at_most(doubled: bool) -> None:
    """Differences of equal numbers: nothing tells these strategies that a parameter has no effect."""
    grads = gradients_with_constants(FiniteDifference(doubled=doubled))
    for name in ("shift", "net.2.bias", "bias", "unused"):
        assert grads[name] is None or float(grads[name].abs().max()) < 1e-9


def gradients_with_constants(strategy: GradientStrategy) -> dict[str, Any]:
    torch.manual_seed(0)
    energy = WithConstants().double()
    pull, shift = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    implicit = isinstance(strategy, Implicit)
    rule, stop = GradientDescent(300 if implicit else 3, 0.2), RelativeChange(1e-9) if implicit else None
    y = Minimizer(Reals(), rule, strategy, stop)(energy, (pull, shift), torch.zeros_like(pull)).output
    y.square().sum().backward()
    return {"pull": pull.grad, "shift": shift.grad, **{n: p.grad for n, p in energy.named_parameters()}}


def test_the_rates_and_init_get_gradients() -> None:
    """The comparison above would also pass if all of these were zero."""
    for domain in all_domains():
        model, x, target = example_model(domain, all_rules()[1], Exact())
        gradients = gradients_of(model, x, target, EndToEnd(squared_error))
        for part in ("features.0.weight", "init.0.weight", "minimizer.rule.rates.log", "x"):
            assert gradients[part].abs().max() > 1e-6, (domain, part)


def test_the_dividing_stop_divides() -> None:
    """Otherwise the tests with early stopping would test nothing."""
    for domain in all_domains():
        for rule in all_rules():
            model, x, _ = example_model(domain, rule, Exact(), dividing_stop(domain, rule))
            assert len(set(model(x).steps_used.tolist())) > 1, (domain, type(rule))


@pytest.mark.parametrize("stopping", [False, True], ids=["fixed", "stopping"])
@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), Compiled(patience=0)], ids=str)
def test_a_dampened_momentum_agrees_with_exact(strategy: GradientStrategy, stopping: bool) -> None:
    """Its first step has no velocity before it."""
    rule = Momentum(4, 0.3, decay=0.5, dampening=0.5, learn_rates=True)
    stop = dividing_stop(Reals(), rule) if stopping else None
    objective = EndToEnd(squared_error)
    expected = gradients_of(*example_model(Reals(), rule, Exact(), stop), objective)
    found = gradients_of(*example_model(Reals(), rule, strategy, stop), objective)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-8, atol=1e-10), name
