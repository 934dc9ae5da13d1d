"""Second derivatives that come and go, finite differences that are noise, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies import Energy
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    GradientStrategy,
    NotTwiceDifferentiable,
)
from tests.gradients.test_guards import WIDTH, assert_follows, programs
from tests.gradients.test_once_differentiable import CustomEnergy
from tests.helpers import distance, gradients, prior

# ── second derivatives that come and go ──


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), Compiled(patience=0)], ids=str)
def test_a_flag_takes_the_second_derivative_away(strategy: GradientStrategy) -> None:
    """A Function right below a sum drops out of the second derivative without an error of autograd's own."""
    energy, x = CustomEnergy(once=False).double(), torch.randn(2, 6, 8, dtype=torch.float64)
    for _ in range(2):
        gradients(energy, strategy, x)
    energy.once = True
    with pytest.raises(NotTwiceDifferentiable, match="SquareOnce can be differentiated only once"):
        gradients(energy, strategy, x)
    energy.once = False
    assert distance(gradients(energy, strategy, x), gradients(energy, Exact(), x)) < 1e-9


def test_auto_sees_that_the_second_derivative_has_gone() -> None:
    energy, x, auto = CustomEnergy(once=False).double(), torch.randn(2, 6, 8, dtype=torch.float64), Auto()
    exact = gradients(energy, Exact(), x)
    assert distance(gradients(energy, auto, x), exact) < 1e-9
    energy.once = True
    assert distance(gradients(energy, auto, x), exact) < 1e-6
    assert auto.explain().startswith("FiniteDifference")


# ── finite differences where they are noise or nothing ──


class Wide(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1, False)
        )

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.net(y).squeeze(1).float() + 0.5 * (y - x).square().sum(1)


@pytest.mark.parametrize("make", [Wide, prior], ids=["linear", "convolutions"])
def test_finite_differences_under_autocast(make: Callable[[], Energy]) -> None:
    energy, x = make(), torch.randn(4, 16) if make is Wide else torch.rand(2, 1, 12, 12)
    exact = gradients(energy, Exact(), x)
    with torch.autocast("cpu", torch.bfloat16):
        found, same = gradients(energy, FiniteDifference(), x), gradients(energy, Exact(), x)
    assert distance(found, same) <= 0.02
    assert distance(found, exact) <= 0.02
    assert distance(same, exact) > 1e-5  # autocast did lower something


# ── importing ──


def test_importing_and_training_on_a_cpu_leave_the_compiler_out() -> None:
    code = """
import sys
import torch
before = set(sys.modules)
import spen
spen.SPEN, spen.Minimizer, spen.Energy, spen.derivatives.Derivatives
heavy = ("torch._inductor", "torch._dynamo", "sympy", "torch.fx.experimental")
print(sorted(m for m in set(sys.modules) - before if m.startswith(heavy)))
from spen.domains import Reals
from spen.energies import Linear
from spen.rules import Momentum
x = torch.randn(2, 3, requires_grad=True)
spen.Minimizer(Reals(), Momentum(2, 0.1))(Linear(), x, x).output.sum().backward()
print(sorted(m for m in sys.modules if m.startswith("torch._inductor")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_softplus_of_another_sharpness() -> None:
    """A number of one of torch's own modules."""

    class Soft(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.soft = nn.Linear(WIDTH, WIDTH), nn.Softplus(beta=1.0)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.soft(self.mix(y) - x).square().sum(1) + F.silu(y).sum(1)

    energy = Soft().double()
    assert_follows(energy, programs(), lambda: setattr(energy.soft, "beta", 3.0))
