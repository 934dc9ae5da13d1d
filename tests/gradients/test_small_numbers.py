"""Nothing turns into NaN where numbers are about to underflow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals, Simplex
from spen.energies import Energy
from spen.gradients import Exact, FiniteDifference, GradientStrategy
from spen.rules import LBFGS, GradientDescent


class Bowl(Energy):
    """½⟨d, (y − f)²⟩."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.linspace(1, 3, n))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 0.5 * ((y - features).square() * self.bend).sum(1)


def _bowl(scale: float, steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    features, start = scale * torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    energy = Bowl(3).to(dtype)
    minimizer = spen.Minimizer(Reals(), LBFGS(steps, 1.0), Exact()).to(dtype)
    output = minimizer(energy, features.to(dtype), start.to(dtype)).output
    (bar,) = torch.autograd.grad(output.sum(), [energy.bend])
    return output.detach().double(), bar.double()


@pytest.mark.parametrize("steps", [5, 10, 15, 20, 30])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-3, 1.0])
def test_lbfgs_stays_finite_near_a_minimum(scale: float, steps: int) -> None:
    """Differences of points and gradients shrink to nothing there, and their inverses must not overflow."""
    output, bar = _bowl(scale, steps, torch.float32)
    expected, expected_bar = _bowl(scale, steps, torch.float64)
    assert torch.allclose(output, expected, atol=1e-4)
    assert torch.allclose(bar, expected_bar, atol=1e-3)


class Pairs(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0], [3.0, 0.0, 1.0]]))

    def forward(self, y: Tensor, features: None) -> Tensor:
        return -0.01 * torch.einsum("bi,ij,bj->b", y, self.weight, y)


@pytest.mark.parametrize("gap", [50.0, 90.0, 95.0, 98.0, 100.0, 103.0])
@pytest.mark.parametrize("doubled", [True, False], ids=["doubled", "one by one"])
def test_finite_differences_of_a_vanishing_direction(gap: float, doubled: bool) -> None:
    """One example whose softmax is all but saturated gets a cotangent of denormal numbers."""

    def gradient(strategy: GradientStrategy) -> Tensor:
        energy = Pairs()
        minimizer = spen.Minimizer(Simplex(), GradientDescent(2, 0.1), strategy)
        y = minimizer(energy, None, torch.tensor([[gap, 0.0, 0.0], [0.5, 0.0, 0.0]])).output
        (bar,) = torch.autograd.grad((y[:, 0] - y[:, 1]).sum(), [energy.weight])
        return bar

    expected = gradient(Exact())
    assert torch.allclose(gradient(FiniteDifference(doubled=doubled)), expected, atol=2e-3 * float(expected.norm()))
