"""The recurrent optimiser keeps the contract of a rule, starts as gradient descent, and learns to be faster."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spen
from spen.domains import Reals
from spen.gradients import Checkpointed, Exact
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, LearnedOptimizer
from spen.testing import check_rule, known_problems
from spen.testing.strategy import example_model, gradients_of


def _awake(**options: float) -> LearnedOptimizer:
    rule = LearnedOptimizer(4, 0.3, **options)  # type: ignore[arg-type]
    nn.init.normal_(rule.readout.weight, std=0.5)
    return rule


def test_it_is_a_rule() -> None:
    check_rule(_awake())
    check_rule(LearnedOptimizer(3, 0.1, width=4), shape=(2, 3, 2))


def test_before_learning_it_is_gradient_descent() -> None:
    model, x, _ = example_model(Reals(), LearnedOptimizer(4, 0.3), Exact())
    plain, _, _ = example_model(Reals(), GradientDescent(4, 0.3), Exact())
    assert torch.allclose(model(x).output, plain(x).output, atol=1e-12)


def test_a_step_by_hand() -> None:
    rule = _awake(scale=0.5).double()
    z, g = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    direction, (memory, kept) = rule.update(1, z, g, rule.begin(z))
    cell = rule.cell
    for i, j in ((0, 0), (1, 2)):
        seen = torch.asinh(g[i, j] / 0.5)
        gates = cell.weight_ih[:, 0] * seen + cell.bias_ih
        reset, update = torch.sigmoid(gates[:16] + cell.bias_hh[:16]).chunk(2)
        new = torch.tanh(gates[16:] + reset * cell.bias_hh[16:])
        hidden = (1 - update) * new
        assert torch.allclose(memory[i, j], hidden)
        assert torch.allclose(direction[i, j], 0.3 * (g[i, j] + 0.5 * (rule.readout.weight[0] * hidden).sum()))
    assert torch.equal(kept, g)


def test_the_gradient_reaches_its_weights_the_same_way_by_every_path() -> None:
    rule = _awake()
    exact, x, target = example_model(Reals(), rule, Exact())
    replayed, _, _ = example_model(Reals(), rule, Checkpointed())
    a, b = (gradients_of(m, x, target, EndToEnd(squared_error)) for m in (exact, replayed))
    assert float(a["minimizer.rule.cell.weight_ih"].abs().max()) > 0
    for name in a:
        assert torch.allclose(a[name], b[name], atol=1e-9), name


def test_it_learns_to_arrive_sooner() -> None:
    problem = known_problems()[0]
    energy, center = problem.energy.float(), problem.features.float()
    distances = []
    for learn in (False, True):
        torch.manual_seed(0)
        rule = LearnedOptimizer(5, 0.1)
        model = spen.SPEN(energy=energy, init=_Zero(), minimizer=spen.Minimizer(Reals(), rule, Exact()))
        optimizer = torch.optim.Adam(rule.parameters(), 0.02)
        for _ in range(60 if learn else 0):
            x = torch.randn(32, center.shape[1])
            optimizer.zero_grad()
            EndToEnd(squared_error)(model, x, x).backward()
            optimizer.step()
        distances.append(float((model(center).output - center).norm()))
    assert distances[1] < 0.5 * distances[0]


class _Zero(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(features)


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="a descent takes a whole number of steps, at least one, not 0"):
        LearnedOptimizer(0)
    with pytest.raises(ValueError, match="width ≥ 1 and scale > 0"):
        LearnedOptimizer(2, width=0)
    assert "width=3" in repr(LearnedOptimizer(2, width=3))
