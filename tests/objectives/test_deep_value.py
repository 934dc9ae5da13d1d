"""Deep value networks: the target by sets, the answers by definition, and E = −v after learning."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import DeepValue
from spen.objectives.deep_value import Misfit, misfit
from spen.rules import GradientDescent


class Net(Energy):
    def __init__(self, labels: int = 4, width: int = 48) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * labels, width), nn.Softplus(), nn.Linear(width, 1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(torch.cat([y, features], 1)).squeeze(1)


class Half(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.full_like(features, 0.5)


def model(steps: int = 6) -> spen.SPEN:
    torch.manual_seed(0)
    return spen.SPEN(
        energy=Net(), init=Half(), minimizer=spen.Minimizer(Box("projected"), GradientDescent(steps, 0.5), Exact())
    )


def f1(y: Tensor, target: Tensor) -> Tensor:
    return 2 * (y * target).sum(1) / (y.sum(1) + target.sum(1)).clamp_min(1e-9)


def f1_of_sets(a: set[int], b: set[int]) -> float:
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 0.0


def test_the_target_is_the_f1_of_the_sets() -> None:
    net = model()
    x = torch.randn(1, 4)
    target = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    for bits in itertools.product((0.0, 1.0), repeat=4):
        y = torch.tensor([bits])
        value = f1_of_sets({i for i, b in enumerate(bits) if b}, {0, 2})
        energy = float(net.energy(y, x).detach())
        objective = DeepValue(f1, fit="squared", draw=("truth",), truth=lambda t, y=y: y)
        assert float(objective(net, x, target).detach()) == pytest.approx((energy + value) ** 2, abs=1e-5)
        objective = DeepValue(f1, draw=("truth",), truth=lambda t, y=y: y)
        expected = value * math.log1p(math.exp(energy)) + (1 - value) * math.log1p(math.exp(-energy))
        assert float(objective(net, x, target).detach()) == pytest.approx(expected, abs=1e-5)


def test_where_the_answers_come_from() -> None:
    net = model()
    x, target = torch.randn(5, 4), torch.randint(2, (5, 4)).float()
    objective = DeepValue(f1)
    assert torch.equal(objective.answers("truth", net, x, target), target)
    assert torch.equal(objective.answers("inference", net, x, target), net(x).output.detach())
    wrong = objective.answers("adversarial", net, x, target)
    start = torch.full_like(target, 0.5)
    gaps = [misfit(net.energy(y, x), f1(y, target), "cross_entropy").mean() for y in (start, wrong)]
    assert bool(gaps[1] > gaps[0])
    assert torch.allclose(
        Misfit(net.energy, f1, "squared")(wrong, (x, target)), -(net.energy(wrong, x) + f1(wrong, target)).square()
    )
    mixed = objective.answers("mixed", net, x, target)
    assert bool(((mixed >= 0) & (mixed <= 1)).all())
    assert not torch.equal(mixed, target)


def test_it_is_the_mean_over_the_kinds_and_the_gradient_is_the_energys_alone() -> None:
    net = model()
    x, target = torch.randn(5, 4), torch.randint(2, (5, 4)).float()
    kinds = ("truth", "inference", "adversarial")
    parts = [float(DeepValue(f1, draw=(kind,))(net, x, target).detach()) for kind in kinds]  # type: ignore[arg-type]
    objective = DeepValue(f1, draw=kinds)  # type: ignore[arg-type]
    total = objective(net, x, target)
    assert float(total.detach()) == pytest.approx(sum(parts) / 3, rel=1e-5)
    (found,) = torch.autograd.grad(total, [net.energy.net[0].weight])  # type: ignore[index]
    fixed = [objective.answers(kind, net, x, target) for kind in kinds]  # type: ignore[arg-type]
    by_hand = sum(misfit(net.energy(y, x), f1(y, target), "cross_entropy").mean() for y in fixed) / 3
    (expected,) = torch.autograd.grad(by_hand, [net.energy.net[0].weight])  # type: ignore[index]
    assert torch.allclose(found, expected, atol=1e-6)


def test_learning_makes_the_energy_minus_the_value_and_the_descent_finds_the_set() -> None:
    """The features are the truth here, so v can be known everywhere."""
    net = model(steps=8)
    sets = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))[1:]
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    objective = DeepValue(f1, fit="squared")
    for _ in range(200):
        optimizer.zero_grad()
        objective(net, sets, sets).backward()
        optimizer.step()
    with torch.no_grad():
        other = sets.roll(5, 0)
        error = (net.energy(other, sets) + f1(other, sets)).abs().mean()
        wrong = ((net(sets).output > 0.5) != (sets > 0.5)).float().mean()
    assert float(error) < 0.2
    assert float(wrong) < 0.1


def test_integer_targets_and_misuse() -> None:
    net = model()
    x, target = torch.randn(3, 4), torch.randint(2, (3, 4))
    DeepValue(lambda y, t: f1(y, t.float()))(net, x, target).backward()
    with pytest.raises(ValueError, match='fit must be "squared" or "cross_entropy"'):
        DeepValue(f1, fit="hinge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draw must list"):
        DeepValue(f1, draw=("gold",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="v per example"):
        DeepValue(lambda y, t: f1(y, t).mean())(net, x, target.float())
