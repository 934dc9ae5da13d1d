"""Direct loss minimisation: its gradient tends to that of Δ(argmin E), which a quadratic energy has in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import DirectLoss
from spen.rules import GradientDescent


class Bowl(Energy):
    """½‖y − W f‖²: argmin = W f."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, dtype=torch.float64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 0.5 * (y - features @ self.weight.T).square().sum(1)


class Zero(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.new_zeros(len(features), 2)


def cost(y: Tensor, target: Tensor) -> Tensor:
    return torch.tanh((y - target).square().sum(1))


def model(steps: int = 60) -> spen.SPEN:
    torch.manual_seed(0)
    return spen.SPEN(
        energy=Bowl(), init=Zero(), minimizer=spen.Minimizer(Reals(), GradientDescent(steps, 0.5), Exact())
    )


@pytest.mark.parametrize("direction", ["towards", "away"])
def test_the_gradient_tends_to_that_of_the_cost(direction: str) -> None:
    net = model()
    x, target = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    weight = net.energy.weight
    (exact,) = torch.autograd.grad(cost(x @ weight.T, target).mean(), weight)  # type: ignore[operator,arg-type,union-attr]
    errors = []
    for epsilon in (0.1, 0.01, 0.001):
        objective = DirectLoss(cost, epsilon=epsilon, direction=direction)  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(objective(net, x, target), weight)  # type: ignore[arg-type]
        errors.append(float((found - exact).abs().max()))
    assert errors[2] < 1e-3
    assert errors[2] < 0.2 * errors[1] < 0.04 * errors[0] * 1.5


def test_the_moved_answer_is_better_or_worse() -> None:
    net = model()
    x, target = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    for direction, sign in (("towards", 1), ("away", -1)):
        answer, moved = DirectLoss(cost, epsilon=0.1, direction=direction).answers(net, x, target)  # type: ignore[arg-type]
        assert bool((sign * (cost(moved, target) - cost(answer, target)) <= 0).all())
        assert not torch.allclose(answer, moved)
        assert torch.allclose(answer, x @ net.energy.weight.T)  # type: ignore[operator,union-attr]
        assert not moved.requires_grad


def test_learning_lowers_the_cost() -> None:
    net = model(steps=15)
    x, target = torch.randn(40, 3, dtype=torch.float64), torch.zeros(40, 2, dtype=torch.float64)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    objective = DirectLoss(cost, epsilon=0.5)
    before = float(cost(net(x).output.detach(), target).mean())
    for _ in range(30):
        optimizer.zero_grad()
        objective(net, x, target).backward()
        optimizer.step()
    assert float(cost(net(x).output.detach(), target).mean()) < 0.3 * before


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="epsilon must be positive"):
        DirectLoss(cost, epsilon=0)
    with pytest.raises(ValueError, match='direction must be "towards" or "away"'):
        DirectLoss(cost, direction="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Δ per example"):
        DirectLoss(lambda y, t: cost(y, t).mean())(model(), torch.zeros(2, 3).double(), torch.zeros(2, 2).double())
