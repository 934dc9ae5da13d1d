"""Complex and sparse tensors, and types of numbers that differ within an energy: by value, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy, Linear, Scaled
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
)
from spen.protocols import Domain, GradientStrategy, StepRule
from spen.rules import GradientDescent

DRAWS = torch.Generator().manual_seed(1)
X = torch.randn(3, 4, generator=DRAWS)


def gradients(
    energy: Energy,
    strategy: GradientStrategy,
    x: Tensor = X,
    rule: StepRule | None = None,
    domain: Domain | None = None,
    stop: Any = None,
) -> list[Tensor]:
    energy.zero_grad()
    torch.manual_seed(2)
    minimizer = spen.Minimizer(domain or Reals(), rule or GradientDescent(3, 0.01), strategy, stop)
    minimizer(energy, x, x).output.square().sum().backward()
    return [p.grad.clone() for p in energy.parameters() if p.grad is not None]


class Net(Energy):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(self.a(y)).sum(1) + 0.5 * (y - features).square().sum(1)


class Spectrum(Energy):
    """‖w · FFT(y)‖² with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (torch.fft.fft(y) * self.w).abs().square().sum(1) + 0.5 * (y - features).square().sum(1)


@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), Compiled(patience=0), Auto()], ids=str)
def test_complex_weights(strategy: GradientStrategy) -> None:
    torch.testing.assert_close(gradients(Spectrum(), strategy), gradients(Spectrum(), Exact()), rtol=1e-4, atol=1e-6)


class Sparse(Energy):
    """½ yᵀ L y + ⟨c, tanh y⟩ with a sparse matrix L."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("laplacian", torch.eye(4).to_sparse())

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        smooth = torch.sparse.mm(self.laplacian, y.T).T
        return 0.5 * (y * smooth).sum(1) + (self.c * torch.tanh(y - features)).sum(1)


@pytest.mark.parametrize("strategy", [Auto(), Checkpointed(), FiniteDifference()], ids=str)
def test_products_with_sparse_matrices(strategy: GradientStrategy) -> None:
    torch.testing.assert_close(gradients(Sparse(), strategy), gradients(Sparse(), Exact()), rtol=1e-3, atol=1e-5)


class Narrow(Energy):
    """A network in float32 for y in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1, bias=False))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y.float()).squeeze(1) + 0.5 * (y - features).square().sum(1)


def test_finite_differences_of_a_shorter_type_need_a_radius() -> None:
    x = X.double()
    with pytest.raises(ValueError, match=r"Narrow computes in torch.float32 and y is in torch.float64.*radius=1e-2"):
        gradients(Narrow(), FiniteDifference(), x)
    found, expected = (gradients(Narrow(), s, x) for s in (FiniteDifference(1e-2), Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


class Halved(Energy):
    """Features in float16, which the energy turns into numbers of single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.ones(4))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (self.c * (y - features.float()).square()).sum(1)


def test_features_in_half_precision_that_are_widened_at_once_are_no_half_precision() -> None:
    found = []
    for strategy in (FiniteDifference(), Exact()):
        energy, features = Halved(), X.half().requires_grad_()
        spen.Minimizer(Reals(), GradientDescent(3, 0.1), strategy)(energy, features, X).output.sum().backward()
        found.append((energy.c.grad, features.grad))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


def test_weights_of_sums_keep_whole_numbers() -> None:
    y = torch.ones(1, 3)
    for weight in (2049, 100_000):
        assert float(Scaled(Linear(), torch.tensor(weight)).weight) == weight
        assert float((Linear() * torch.tensor(weight))(y, y)) == -3 * weight
    assert Scaled(Linear(), torch.tensor(0.5, dtype=torch.float16)).weight.dtype is torch.float16


class Rectified(Energy):
    """A net with corners and biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)]
        self.net = nn.Sequential(*layers)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y).squeeze(1) + 0.5 * (y - features).square().sum(1)


def test_products_in_bfloat16_of_a_net_with_corners() -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    strategy = Compiled(patience=0, precision=torch.bfloat16, fuse=False)
    energy = Rectified()
    found, expected = gradients(energy, strategy, x), gradients(Rectified(), Exact(), x)
    assert strategy.programs(energy)
    size = sum(float(b.square().sum()) for b in expected)
    error = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True)) / size
    assert 1e-8 < error < 1e-3, "rounded, and no more than that"


class Inner(Energy):
    """‖∂φ/∂y‖² of a network φ, by autograd inside of the energy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(torch.tanh(self.a(y)).sum(), y, create_graph=True)
        return slope.square().sum(1) + 0.5 * (y - features).square().sum(1)


def test_an_energy_that_differentiates_itself_is_scored_and_searched() -> None:
    for rule in (GradientDescent(3, 0.1), GradientDescent(3, 0.1, backtracks=2)):
        model = spen.SPEN(energy=Inner(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), rule, Exact()))
        energies = model(X).energies
        assert energies.shape == (4, 3)
        assert bool((energies[-1] < energies[0]).all())
        assert torch.equal(model.search(X).energy, energies[-1])


class Expanded(Energy):
    """½‖y − f‖² around a large constant, as a sum of terms that nearly cancel."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.tensor(constant))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        m, f = y + self.c, features + self.c
        return 0.5 * (m.square() - 2 * m * f + f.square()).sum(1)


@pytest.mark.parametrize("constant", [100.0, 1000.0])
def test_an_energy_that_cancels_is_no_wrong_derivative(constant: float) -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def of_features(strategy: GradientStrategy) -> Tensor:
        minimizer = spen.Minimizer(Reals(), GradientDescent(20, 0.2), strategy)
        loss = minimizer(Expanded(constant), x, torch.zeros(3, 256)).output.square().sum()
        return torch.autograd.grad(loss, x)[0]

    found, expected = of_features(FiniteDifference()), of_features(Exact())
    assert float((found - expected).norm() / expected.norm()) < 5e-3


def test_a_radius_below_the_resolution_of_y_is_refused() -> None:
    with pytest.raises(ValueError, match="the radius 0.01 of the finite differences is lost in the rounding of y"):
        gradients(Net(), FiniteDifference(), 1e6 * X)


class Offset(Narrow):
    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y.float()).squeeze(1) + 1e4 + 0.5 * (y - features).square().sum(1)


def test_a_radius_for_single_precision_goes_with_its_rounding() -> None:
    assert gradients(Offset(), FiniteDifference(1e-2), X.double())


class Wide(Energy):
    """A weight in single precision that y does not pass through."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (nn.functional.softplus(self.w).double() * (y - features).square()).sum(1)


def test_types_that_do_not_depend_on_y_do_not_count() -> None:
    x = X.double()
    start = torch.zeros_like(x)

    def weight(strategy: GradientStrategy) -> Tensor:
        energy = Wide()
        spen.Minimizer(Reals(), GradientDescent(3, 0.1), strategy)(energy, x, start).output.sum().backward()
        assert energy.w.grad is not None
        return energy.w.grad

    torch.testing.assert_close(weight(FiniteDifference()), weight(Exact()), rtol=1e-5, atol=1e-7)
