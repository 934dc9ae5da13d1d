"""Every domain, rule and energy of the library keeps its contract."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spen.domains import Domain
from spen.energies import ICNN, Energy, EntropySmoothed, Linear, NegativeEntropy, Scaled, SoftNand, Sum
from spen.protocols import StepRule
from spen.rules import LBFGS, GradientDescent, Momentum
from spen.tasks.denoising.energy import ConvexDeepPrior, DataTerm, DeepPrior, FieldOfExperts, Observation
from spen.testing import check_domain, check_energy, check_rule
from spen.testing.strategy import SmoothEnergy, all_domains, all_rules


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (2, 2, 3, 2)])
@pytest.mark.parametrize("domain", all_domains(), ids=str)
def test_domain(domain: Domain, shape: tuple[int, ...]) -> None:
    check_domain(domain, shape)


@pytest.mark.parametrize(
    "rule",
    [
        *all_rules(),
        GradientDescent(3, [0.1, 0.2, 0.3]),
        Momentum(6, 0.1, decay=0.0),
        Momentum(6, 0.1, decay=0.75, dampening=0.75),
        LBFGS(6, memory=1),
    ],
    ids=lambda r: type(r).__name__,
)
def test_rule(rule: StepRule) -> None:
    check_rule(rule)


def _nand() -> SoftNand:
    return SoftNand(lambda y, _: (y[:, :, 0], y[:, :, 1]))


ENERGIES: list[Energy] = [
    Linear(),
    EntropySmoothed(Linear(), 0.3),
    EntropySmoothed(Linear(), 0.3, over="box", learned=True),
    NegativeEntropy("box"),
    _nand(),
    ICNN(8, (6, 5), context=8),
    SmoothEnergy(4, 4),
    Sum(Linear(), Scaled(_nand(), 2.0, learned=True)),
    Linear() + 0.5 * NegativeEntropy(),
]


@pytest.mark.parametrize("energy", ENERGIES, ids=lambda e: type(e).__name__)
def test_energy_on_probabilities(energy: Energy) -> None:
    y = torch.softmax(torch.randn(3, 2, 4, dtype=torch.float64), -1)
    features = torch.randn(3, 4, dtype=torch.float64) if isinstance(energy, SmoothEnergy) else torch.randn_like(y)
    check_energy(energy.double(), y, features)


@pytest.mark.parametrize(
    "energy",
    [
        DataTerm(),
        FieldOfExperts(4, 5),
        DeepPrior(4, 5),
        DeepPrior(4, 5, padding="replicate"),
        ConvexDeepPrior(4, 5),
        ConvexDeepPrior(4, 5, padding="reflect", blind=True, free=True),
    ],
    ids=lambda e: type(e).__name__,
)
def test_energy_on_images(energy: Energy) -> None:
    y = torch.rand(2, 1, 9, 11, dtype=torch.float64)
    seen = (torch.rand_like(y) > 0.2).double()
    check_energy(energy.double(), y, Observation(torch.rand_like(y), seen))


def test_all_domains_have_distinct_names() -> None:
    names: list[str] = [str(d) for d in all_domains()]
    assert len(set(names)) == len(names)


def test_example_energy_shapes() -> None:
    y: Tensor = torch.rand(3, 2, 4)
    assert SmoothEnergy(4, 5)(y, torch.rand(3, 5)).shape == (3,)
