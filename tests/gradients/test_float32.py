"""In single precision, on the energy the paper trains: how far each strategy is from double precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from spen.gradients import Checkpointed, Exact, FiniteDifference, ForwardOverReverse, GradientStrategy
from spen.objectives import EndToEnd, squared_error
from spen.tasks.denoising.energy import DeepPrior, Observation
from tests.helpers import denoiser


def _gradient(prior: nn.Module, image: Tensor, target: Tensor, strategy: GradientStrategy) -> Tensor:
    """d loss / d (energy, rates) of the DeepPrior of Sec. 6.1, T = 10."""
    model = denoiser(copy.deepcopy(prior), 10, strategy).to(image.dtype)
    loss = EndToEnd(squared_error)(model, Observation(image, torch.ones_like(image)), target)
    bars = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([bar.flatten().double() for bar in bars])


@pytest.mark.parametrize(
    ("strategy", "tolerance"),
    [
        (FiniteDifference(), 2e-3),
        (FiniteDifference(doubled=False), 2e-3),
        (Checkpointed(), 1e-5),
        (ForwardOverReverse(), 1e-5),
    ],
    ids=str,
)
def test_the_deep_prior_in_single_precision(strategy: GradientStrategy, tolerance: float) -> None:
    torch.manual_seed(0)
    energy, image = DeepPrior(), torch.rand(2, 1, 16, 20)
    target = nn.functional.avg_pool2d(image, 3, 1, 1)
    expected = _gradient(energy, image.double(), target.double(), Exact())
    found = _gradient(energy, image, target, strategy)
    assert float((found - expected).norm() / expected.norm()) < tolerance


def test_the_radius_does_something() -> None:
    torch.manual_seed(0)
    energy, image = DeepPrior(8), torch.rand(1, 1, 12, 12)
    target = nn.functional.avg_pool2d(image, 3, 1, 1)
    expected = _gradient(energy, image.double(), target.double(), Exact())
    errors = [
        float((_gradient(energy, image, target, FiniteDifference(radius)) - expected).norm() / expected.norm())
        for radius in (1e-5, 1e-2, 0.5)
    ]
    assert errors[1] < errors[0]
    assert errors[1] < errors[2]
