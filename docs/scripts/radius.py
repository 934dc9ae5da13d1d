"""The error of finite differences against the radius: DeepPrior, T = 20, float32. python docs/scripts/radius.py"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Scaled, Sum
from spen.gradients import Exact, FiniteDifference, GradientStrategy
from spen.objectives import EndToEnd, squared_error
from spen.rules import Momentum
from spen.tasks.denoising.energy import DataTerm, DeepPrior, Observation


class First(nn.Module):
    def forward(self, features: Observation) -> Tensor:
        return features.image


def gradient(energy: nn.Module, image: Tensor, strategy: GradientStrategy) -> Tensor:
    """d loss / d (energy, rates), on a fixed target."""
    rule = Momentum(20, 0.05, decay=0.25, learn_rates=True).to(image.dtype)
    model = spen.SPEN(energy=energy, init=First(), minimizer=spen.Minimizer(Reals(), rule, strategy))
    target = nn.functional.avg_pool2d(image, 3, 1, 1)
    loss = EndToEnd(squared_error)(model, Observation(image, torch.ones_like(image)), target)
    return torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, list(model.parameters()))])


if __name__ == "__main__":
    torch.manual_seed(0)
    energy = Sum(local=DataTerm(), prior=Scaled(DeepPrior(), 0.05, learned=True))
    image = torch.rand(2, 1, 24, 32)
    exact = gradient(copy.deepcopy(energy).double(), image.double(), Exact())
    for radius in (1e-3, 3e-3, 1e-2, 2e-2, 3e-2):
        error = (gradient(energy, image, FiniteDifference(radius)) - exact).norm() / exact.norm()
        print(f"radius {radius:.0e}: relative error {float(error):.1e}")
