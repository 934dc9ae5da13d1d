"""A gradient written by hand: the same descent and derivatives as autograd's own, and Exact where there is none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spen
from spen.domains import Reals, Simplex
from spen.energies import Energy
from spen.gradients import Exact, Written
from spen.protocols import Formula
from spen.rules import Momentum


class Bowl(Energy):
    """⟨w, softplus(A y)⟩ + ½‖y − x‖², whose gradient is Aᵀ(w ⊙ σ(A y)) + y − x."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(5, 4))
        self.weights = nn.Parameter(torch.randn(5))
        self.bound = 0

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return F.softplus(y @ self.mix.T) @ self.weights + 0.5 * (y - x).square().sum(1)

    def formula(self, x: Tensor) -> Formula:
        self.bound += 1

        def slope(y: Tensor) -> tuple[Tensor, Tensor]:
            return (self.weights * torch.sigmoid(y @ self.mix.T)) @ self.mix + y - x, self(y, x)

        return slope


def gradients(energy: nn.Module, strategy: spen.protocols.GradientStrategy, **options: object) -> list[Tensor]:
    x = torch.linspace(-4, 4, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    minimizer = spen.Minimizer(
        options.get("domain", Reals()),  # type: ignore[arg-type]
        Momentum(6, 0.2, decay=0.3, learn_rates=True),
        strategy,
        options.get("stop"),  # type: ignore[arg-type]
        keep_gradients=True,
    ).double()
    trajectory = minimizer(energy, x, torch.ones(3, 4, dtype=torch.float64))
    total = sum(y.square().sum() for y in [*trajectory.outputs, *trajectory.gradients])
    assert isinstance(total, Tensor)
    return [*torch.autograd.grad(total, [x, *energy.parameters(), *minimizer.parameters()]), trajectory.energies]


@pytest.mark.parametrize("stop", [None, spen.RelativeChange(0.2)])
def test_a_written_gradient_gives_the_derivatives_of_exact(stop: object) -> None:
    torch.manual_seed(0)
    energy = Bowl().double()
    for a, b in zip(gradients(energy, Written(), stop=stop), gradients(energy, Exact(), stop=stop), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert energy.bound >= 1
    assert stop is not None or energy.bound == 1


def test_it_is_bound_again_when_examples_leave() -> None:
    torch.manual_seed(0)
    energy = Bowl().double()
    gradients(energy, Written(), stop=spen.RelativeChange(0.2))
    assert energy.bound > 1


def test_without_a_formula_or_through_an_output_map_exact_runs() -> None:
    torch.manual_seed(0)
    energy = Bowl().double()
    domain = Simplex("through_logits")
    for a, b in zip(
        gradients(energy, Written(), domain=domain), gradients(energy, Exact(), domain=domain), strict=True
    ):
        assert torch.equal(a, b)
    assert energy.bound == 0

    class Plain(Bowl):
        def formula(self, x: Tensor) -> None:  # type: ignore[override]
            return None

    plain = Plain().double()
    for a, b in zip(gradients(plain, Written()), gradients(plain, Exact()), strict=True):
        assert torch.equal(a, b)
