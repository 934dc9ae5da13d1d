"""The bundle entropy method against known minimisers, an interior-point solver, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, minimize
from torch import Tensor, nn

import spen
from spen.bundle_entropy import BundleEntropy, solve_dual
from spen.domains import Box, Reals, Simplex
from spen.energies import ICNN, EntropySmoothed, Linear, NegativeEntropy, Sum
from spen.gradients import Implicit
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.testing.problems import Quadratic

DOMAINS = [pytest.param(Box("logits"), "box", id="box"), pytest.param(Simplex(), "simplex", id="simplex")]


def _convex(over: str, temperature: float = 0.5, size: int = 4) -> EntropySmoothed:
    torch.manual_seed(1)
    network = ICNN(size, (6, 5), context=3, select=lambda f: f).double()
    for layer in network.from_y:
        nn.init.normal_(layer.weight, std=2.0)
    return EntropySmoothed(network, temperature, over=over).double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("domain", "over"), DOMAINS)
def test_linear_energies_need_one_plane(domain: Box | Simplex, over: str) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64)
    energy = EntropySmoothed(Linear(), 0.7, over=over)  # type: ignore[arg-type]
    with torch.no_grad():
        found = BundleEntropy(domain)(energy, scores, torch.zeros_like(scores))
    answer = torch.sigmoid(scores / 0.7) if over == "box" else torch.softmax(scores / 0.7, -1)
    assert torch.allclose(found.output, answer, atol=1e-7)
    assert found.steps_used.tolist() == [1, 1, 1]
    assert bool(found.converged.all())
    assert len(found.outputs) == 50


@pytest.mark.parametrize(("domain", "over"), DOMAINS)
def test_against_an_interior_point_solver(domain: Box | Simplex, over: str) -> None:
    energy, features = _convex(over), torch.randn(3, 3, dtype=torch.float64)
    with torch.no_grad():
        found = BundleEntropy(domain, 80)(energy, features, torch.zeros(3, 4, dtype=torch.float64))
    assert bool(found.converged.all())
    for row in range(3):
        reference = _interior_point(energy, features[row : row + 1], over)
        assert np.abs(found.output[row].numpy() - reference).max() < 2e-4
        assert (
            float(found.energies[-1, row])
            <= float(energy(torch.from_numpy(reference)[None], features[row : row + 1])) + 1e-7
        )


def _interior_point(energy: nn.Module, features: Tensor, over: str) -> np.ndarray:
    def both(y: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(y)[None].requires_grad_()
        value = energy(point, features)
        (slope,) = torch.autograd.grad(value.sum(), point)
        return float(value.detach()), slope[0].numpy()

    sums = [] if over == "box" else [LinearConstraint(np.ones((1, 4)), 1, 1)]
    start = np.full(4, 0.5 if over == "box" else 0.25)
    bounds = [(1e-9, 1 - 1e-9)] * 4
    options = {"gtol": 1e-10, "xtol": 1e-12, "barrier_tol": 1e-12, "maxiter": 2000}
    result = minimize(both, start, jac=True, bounds=bounds, constraints=sums, method="trust-constr", options=options)
    return result.x


@pytest.mark.parametrize(("domain", "over"), DOMAINS)
def test_the_same_minimum_as_gradient_descent_in_fewer_steps(domain: Box | Simplex, over: str) -> None:
    energy, features = _convex(over), torch.randn(3, 3, dtype=torch.float64)
    start = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        bundle = BundleEntropy(domain, 80)(energy, features, start)
        descent = spen.Minimizer(domain, GradientDescent(500, 0.2))(energy, features, start)
    assert torch.allclose(bundle.output, descent.output, atol=1e-4)
    assert int(bundle.steps_used.max()) <= 40


@pytest.mark.parametrize(("domain", "over"), DOMAINS)
def test_the_derivative_of_the_answer_against_finite_differences(domain: Box | Simplex, over: str) -> None:
    energy = _convex(over)
    minimizer = BundleEntropy(domain, 60, tolerance=1e-11)
    features = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    target = torch.softmax(torch.randn(2, 4, dtype=torch.float64), -1)
    start = torch.zeros(2, 4, dtype=torch.float64)

    def loss() -> Tensor:
        return squared_error(minimizer(energy, features, start).output, target).mean()

    weight = energy.energy.from_y[0].weight  # type: ignore[union-attr]
    by_features, by_weight = torch.autograd.grad(loss(), [features, weight])
    with torch.no_grad():
        for tensor, gradient in ((features, by_features), (weight, by_weight)):
            place = tuple((gradient.abs() == gradient.abs().max()).nonzero()[0].tolist())
            reach = 3e-3
            values = []
            for sign in (1, -1):
                tensor[place] += sign * reach
                values.append(float(loss()))
                tensor[place] -= sign * reach
            slope = (values[0] - values[1]) / (2 * reach)
            assert float(gradient[place]) == pytest.approx(slope, rel=5e-3, abs=1e-7)


def test_it_stands_in_a_model() -> None:
    """The same model object, the other minimiser: trained by the same objective."""
    torch.manual_seed(0)
    minimizer = BundleEntropy(Box("logits"), 60, tolerance=1e-7, gradient=Implicit(tolerance=1e-5))
    energy = EntropySmoothed(Sum(local=Linear(), prior=ICNN(4, (6,))), 1.0, over="box")
    model = spen.SPEN(
        features=nn.Linear(3, 4),
        init=nn.Identity(),
        energy=energy,
        minimizer=minimizer,  # type: ignore[arg-type]
    ).double()
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(2, (20, 4)).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = EndToEnd(squared_error, weights="last")(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]


def test_examples_do_not_mix_and_simplices_may_be_many() -> None:
    matrix = torch.diag(torch.linspace(0.5, 3, 3, dtype=torch.float64))
    energy = EntropySmoothed(Quadratic(matrix), 0.3)
    features = torch.randn(3, 2, 3, dtype=torch.float64)
    start = torch.zeros_like(features)
    minimizer = BundleEntropy(Simplex(), 40)
    with torch.no_grad():
        together = minimizer(energy, features, start).output
        alone = minimizer(energy, features[1:2], start[1:2]).output
    assert torch.allclose(together[1:2], alone, atol=1e-6)
    assert torch.allclose(together.sum(-1), torch.ones(3, 2, dtype=torch.float64))
    y = together.requires_grad_()
    (slope,) = torch.autograd.grad(energy(y, features).sum(), y)
    assert float((slope - slope.mean(-1, keepdim=True)).abs().max()) < 1e-3


def test_the_dual_of_two_planes_by_brute_force() -> None:
    G, h = torch.randn(2, 2, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    grid = torch.linspace(0, 1, 20001, dtype=torch.float64)
    lam = torch.stack([grid, 1 - grid], 1)
    for groups in (None, 3):
        a = -(lam @ G) / 0.5
        logs = nn.functional.softplus(a).sum(-1) if groups is None else torch.logsumexp(a, -1)
        values = (lam @ h[..., None]).squeeze(-1) - 0.5 * logs
        assert torch.allclose(solve_dual(G, h, 0.5, groups)[1], values.amax(1), atol=1e-7)


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="works over a Box or a Simplex, not Reals"):
        BundleEntropy(Reals())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="planes ≥ 1 and tolerance > 0"):
        BundleEntropy(Box("projected"), 0)
    with pytest.raises(ValueError, match=r"the entropy of a Box between 0 and 1, not of Box\(.*low=-1, high=1\)"):
        BundleEntropy(Box("logits", low=-1))
    with pytest.raises(ValueError, match="needs the classes in the last dimension, not in 1: permute y"):
        BundleEntropy(Simplex(dim=1))
    start = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="needs an EntropySmoothed energy, not Linear"):
        BundleEntropy(Box("logits"))(Linear(), start, start)
    with pytest.raises(ValueError, match='must be over="box"'):
        BundleEntropy(Box("logits"))(EntropySmoothed(Linear()), start, start)
    double = EntropySmoothed(Sum(Linear(), NegativeEntropy("box")), over="box")
    with pytest.raises(ValueError, match="second closed-form term"):
        BundleEntropy(Box("logits"))(double, start, start)


def _trained(domain: Box | Simplex, seed: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(seed)
    energy = EntropySmoothed(ICNN(3, (8,)) + Linear(), 0.5, over="box" if isinstance(domain, Box) else "simplex")
    model = spen.SPEN(
        features=nn.Linear(4, 3), init=nn.Linear(3, 3), energy=energy, minimizer=BundleEntropy(domain)
    ).to(dtype)
    x, target = torch.randn(16, 4).to(dtype), torch.rand(16, 3).to(dtype)
    EndToEnd(squared_error, weights="last")(model, x, target).backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("domain", [Box("logits"), Simplex("logits")], ids=str)
def test_it_trains_in_single_precision(domain: Box | Simplex, seed: int) -> None:
    """The gap and the residual are known to a few units of the last place, and no better."""
    found, expected = (_trained(domain, seed, dtype) for dtype in (torch.float32, torch.float64))
    assert float((found - expected).norm() / expected.norm()) < 2e-3


def test_it_predicts_in_inference_mode() -> None:
    torch.manual_seed(0)
    energy = EntropySmoothed(ICNN(3, (8,)) + Linear(), 0.5, over="box")
    scores, start = torch.randn(4, 3), torch.zeros(4, 3)
    expected = BundleEntropy(Box("logits"))(energy, scores, start).output.detach()
    with torch.inference_mode():
        trajectory = BundleEntropy(Box("logits"))(energy, scores, start)
        assert torch.equal(trajectory.output, expected)
        assert trajectory.energies.shape == (51, 4)
