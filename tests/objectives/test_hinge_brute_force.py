"""The structured hinge against brute force over all 2^8 label sets."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import StructuredHinge
from spen.rules import GradientDescent

SETS = torch.tensor(list(itertools.product((0.0, 1.0), repeat=8)))


class Friends(Energy):
    """−⟨f, y⟩ − yᵀ W y with W ≥ 0 and no diagonal: linear in each label and all labels attract, so that E − Δ, which
    adds only linear terms, is least at a corner, and coordinates never have to trade places on the way there."""

    def __init__(self) -> None:
        super().__init__()
        weight = 0.05 * torch.rand(8, 8)
        self.weight = nn.Parameter(torch.triu(weight, 1) + torch.triu(weight, 1).T)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return -(features * y).sum(1) - ((y @ self.weight) * y).sum(1)


def hamming(y: Tensor, target: Tensor) -> Tensor:
    return (y + target - 2 * y * target).sum(1)


class Half(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.full_like(features, 0.5)


@pytest.mark.parametrize("seed", range(2))
def test_the_hinge_is_the_largest_violation_over_all_sets(seed: int) -> None:
    torch.manual_seed(seed)
    energy = Friends()
    model = spen.SPEN(
        energy=energy, init=Half(), minimizer=spen.Minimizer(Box("projected"), GradientDescent(40, 2.0), Exact())
    )
    x, target = 1.5 * torch.randn(12, 8), torch.randint(2, (12, 8)).float()
    expected, worst = [], []
    for f, t in zip(x, target, strict=True):
        features, gold = f.expand(256, 8), t.expand(256, 8)
        margins = hamming(SETS, gold) - energy(SETS, features) + energy(t[None], f[None])
        expected.append(margins.clamp_min(0).max())
        worst.append(SETS[margins.argmax()])
    hinge = StructuredHinge(hamming)
    found = hinge.search(model, x, target)
    right = (found.round() == torch.stack(worst)).all(1)
    assert float(right.float().mean()) >= 11 / 12, "the relaxation is tight but for ties of the start"
    per_example = torch.stack([hinge(model, x[i : i + 1], target[i : i + 1]) for i in range(12)])
    assert torch.allclose(per_example[right], torch.stack(expected)[right], atol=1e-4)
    assert bool((per_example <= torch.stack(expected) + 1e-4).all())
