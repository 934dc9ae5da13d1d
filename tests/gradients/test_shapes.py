"""Batches of no examples, and outputs of one number for each example."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Auto, Checkpointed, Compiled, Exact, FiniteDifference, ForwardOverReverse
from spen.objectives import EndToEnd, squared_error
from spen.protocols import GradientStrategy, StepRule
from spen.rules import LBFGS, GradientDescent, Momentum


class Valley(Energy):
    """Σ cosh(a·y − x) of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        energies = torch.cosh(self.slope * y - x)
        return energies.sum(1) if y.dim() > 1 else energies


STRATEGIES = [
    Auto(),
    Exact(),
    Checkpointed(),
    ForwardOverReverse(),
    FiniteDifference(),
    Compiled(patience=0),
    Compiled(patience=0, rows=2),
]


def slopes(strategy: GradientStrategy, rule: StepRule, x: Tensor, target: Tensor) -> Tensor:
    """The gradients of the energy's parameter and of the input, from a loss on the last iterate."""
    stop = spen.RelativeChange(1e-9)
    energy, x = Valley(), x.clone().requires_grad_()
    model = spen.SPEN(
        features=nn.Identity(),
        init=nn.Identity(),
        energy=energy,
        minimizer=spen.Minimizer(Reals(), rule, strategy, stop),
    )
    loss = EndToEnd(squared_error, weights="last")(model, x, target)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [energy.slope, x])])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_an_empty_batch_can_be_trained_on(strategy: GradientStrategy) -> None:
    energy, none = Valley(), torch.zeros(0, 3, dtype=torch.float64)
    trajectory = spen.Minimizer(Reals(), Momentum(3, 0.1), strategy)(energy, none, none)
    assert trajectory.output.shape == (0, 3)
    assert torch.autograd.grad(trajectory.output.sum(), energy.slope, allow_unused=True)[0] in (None, 0.0)


def test_an_empty_batch_is_no_trial() -> None:
    auto, energy = Auto(), Valley()
    minimizer = spen.Minimizer(Reals(), Momentum(3, 0.1), auto)
    none, some = torch.zeros(0, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    minimizer(energy, none, none)
    assert auto._latest is None
    minimizer(energy, some, some)
    assert auto._latest is not None
    assert minimizer(energy, none, none).output.shape == (0, 3)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("rule", [GradientDescent(3, 0.1), LBFGS(3)], ids=["descent", "lbfgs"])
def test_y_may_be_one_number_for_each_example(strategy: GradientStrategy, rule: StepRule) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(2, 5, dtype=torch.float64)
    found = slopes(strategy, rule, x, target)
    torch.testing.assert_close(found, slopes(Exact(), rule, x[:, None], target[:, None]), rtol=1e-6, atol=1e-8)
