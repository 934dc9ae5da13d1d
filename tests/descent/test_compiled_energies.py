"""Energies and inputs of many kinds: a program gives the gradients of Exact, or says in a sentence why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Checkpointed, Compiled, Exact, ForwardOverReverse
from spen.protocols import GradientStrategy
from spen.rules import GradientDescent
from tests.helpers import distance


def gradients(energy: nn.Module, strategy: GradientStrategy, features: Any, start: Tensor) -> Tensor:
    """The gradients of all parameters and of the start, one after another."""
    start = start.detach().requires_grad_()
    y = spen.Minimizer(Reals(), GradientDescent(3, 0.05), strategy)(energy, features, start).output
    wanted = [*energy.parameters(), start]
    return torch.cat([g.flatten() for g in torch.autograd.grad(y.square().sum(), wanted)])


class Context(Energy):
    """A network of the features, whose tangents are zeros, times one of y."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.context = nn.Sequential(nn.Linear(4, 8), activation)
        self.layer = nn.Linear(4, 8)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return (self.context(x) * self.layer(y).tanh()).sum(1) + y.square().sum(1)


@pytest.mark.parametrize("activation", [nn.ELU(), nn.SELU(), nn.CELU(), nn.Softplus()], ids=str)
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_activations_of_constants_agree_with_exact(activation: nn.Module, keep: float) -> None:
    energy, x = Context(activation).double(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found = gradients(energy, Compiled(patience=0, keep=keep), x, torch.zeros_like(x))
    assert distance(found, gradients(energy, Exact(), x, torch.zeros_like(x))) < 1e-12
