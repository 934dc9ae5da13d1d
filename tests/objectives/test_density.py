"""Contrastive divergence and score matching against densities whose moments and minimisers are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.descent.potential import Potential, identity
from spen.domains import Box, Reals, Simplex
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import (
    ContrastiveDivergence,
    DeepValue,
    DenoisingScoreMatching,
    Hamiltonian,
    InferenceNetwork,
    Langevin,
    Sampler,
    ScoreMatching,
    StructuredHinge,
    squared_error,
)
from spen.objectives.coordinates import Coordinates, InCoordinates
from spen.protocols import Domain, Objective
from spen.rules import GradientDescent

COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 2.0]])


class Gaussian(Energy):
    """½ (y − f)ᵀ A (y − f), A = RRᵀ learned."""

    def __init__(self, precision: Tensor) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.linalg.cholesky(precision))

    @property
    def precision(self) -> Tensor:
        return self.root @ self.root.T

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 0.5 * ((y - features) @ self.root).square().sum(1)


class Tilt(Energy):
    """−⟨a, y⟩: over [0, 1] the density e^{ay}, whose mean is 1/(1 − e^{−a}) − 1/a."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return -(features * y).sum(1)


class Dirichlet(Energy):
    """−Σ (α − 1) log y: over the simplex a Dirichlet density, mean α/Σα, variance known."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return -((features - 1) * y.clamp_min(1e-12).log()).sum(1)


def model(energy: Energy, domain: Domain | None = None) -> spen.SPEN:
    minimizer = spen.Minimizer(Reals() if domain is None else domain, GradientDescent(3, 0.1), Exact())
    return spen.SPEN(energy=energy, init=nn.Identity(), minimizer=minimizer)


def draw(sampler: Sampler, energy: Energy, domain: Domain, features: Tensor) -> Tensor:
    space = Coordinates(domain)
    potential = Potential.of(InCoordinates(energy, space), features, identity)
    return space.output(sampler.run(potential, torch.zeros_like(features)))


SAMPLERS = [
    pytest.param(Langevin(400, 0.02), 0.08, id="langevin"),
    pytest.param(Langevin(200, 0.2, corrected=True), 0.08, id="corrected langevin"),
    pytest.param(Hamiltonian(25, 0.25, leapfrog=6), 0.08, id="hamiltonian"),
]


@pytest.mark.parametrize(("sampler", "tolerance"), SAMPLERS)
def test_samples_of_a_gaussian_have_its_moments(sampler: Sampler, tolerance: float) -> None:
    mean = torch.tensor([0.5, -1.0]).expand(4000, 2)
    samples = draw(sampler, Gaussian(COVARIANCE.inverse()), Reals(), mean)
    assert torch.allclose(samples.mean(0), mean[0], atol=tolerance)
    assert torch.allclose(samples.T.cov(), COVARIANCE, atol=2 * tolerance)


@pytest.mark.parametrize(("sampler", "tolerance"), SAMPLERS)
def test_samples_over_the_box_have_the_known_mean(sampler: Sampler, tolerance: float) -> None:
    tilt = torch.tensor([2.0, -1.0]).expand(4000, 2)
    samples = draw(sampler, Tilt(), Box("projected"), tilt)
    known = [1 / (1 - math.exp(-a)) - 1 / a for a in (2.0, -1.0)]
    assert samples.mean(0).tolist() == pytest.approx(known, abs=0.02)


@pytest.mark.parametrize(("sampler", "tolerance"), SAMPLERS)
def test_samples_over_the_simplex_are_dirichlet(sampler: Sampler, tolerance: float) -> None:
    alpha = torch.tensor([1.0, 2.0, 3.0])
    samples = draw(sampler, Dirichlet(), Simplex(), alpha.expand(4000, 3))
    mean = alpha / 6
    assert torch.allclose(samples.mean(0), mean, atol=0.02)
    assert torch.allclose(samples.var(0), mean * (1 - mean) / 7, atol=0.01)


def test_a_rate_too_large_is_wrong_without_correction_and_right_with_it() -> None:
    mean = torch.zeros(4000, 2)
    energy = Gaussian(torch.eye(2))
    plain = draw(Langevin(60, 0.8), energy, Reals(), mean)
    corrected = draw(Langevin(60, 0.8, corrected=True), energy, Reals(), mean)
    assert float(plain.var()) == pytest.approx(1 / (1 - 0.4), rel=0.1)
    assert float(corrected.var()) == pytest.approx(1, rel=0.1)
    loose = draw(Hamiltonian(30, 1.6, leapfrog=3, corrected=False), energy, Reals(), mean)
    assert abs(float(loose.var()) - 1) > 0.2


def test_the_gradient_is_that_of_the_negative_log_likelihood() -> None:
    """With samples from the model itself, E[∇E(y*)] − E[∇E(ỹ)] = ∇ −log p, which for a Gaussian is known."""
    torch.manual_seed(0)
    energy = Gaussian(COVARIANCE.inverse())
    features = torch.zeros(6000, 2)
    data = torch.randn(6000, 2) @ torch.linalg.cholesky(torch.tensor([[0.5, 0.0], [0.0, 0.5]])).T
    objective = ContrastiveDivergence(Hamiltonian(25, 0.25, leapfrog=6))
    (found,) = torch.autograd.grad(objective(model(energy), features, data), [energy.root])
    precision = energy.precision
    nll = 0.5 * (data @ precision * data).sum(1).mean() - 0.5 * torch.logdet(precision)
    (expected,) = torch.autograd.grad(nll, [energy.root])
    assert torch.allclose(found, expected, atol=0.1)


def test_contrastive_divergence_learns_the_covariance() -> None:
    torch.manual_seed(0)
    data = torch.randn(600, 2) @ torch.linalg.cholesky(COVARIANCE).T
    energy = Gaussian(torch.eye(2))
    net, features = model(energy), torch.zeros(600, 2)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    objective = ContrastiveDivergence(Langevin(8, 0.2, corrected=True))
    for _ in range(150):
        optimizer.zero_grad()
        objective(net, features, data).backward()
        optimizer.step()
    assert torch.allclose(energy.precision.inverse().detach(), data.T.cov(), atol=0.35)


def test_every_knob_of_contrastive_divergence_turns() -> None:
    data = torch.rand(8, 3).round()
    features = torch.randn(8, 3)
    net = model(Tilt(), Box("logits"))

    def value(**options: Any) -> float:
        torch.manual_seed(1)
        return float(ContrastiveDivergence(**options)(net, features, data).detach())

    plain = value()
    assert plain != value(margin=0.2)
    assert plain != value(sampler=Hamiltonian())
    assert plain != value(truth=lambda t: 1 - t)
    torch.manual_seed(1)
    space = Coordinates(net.minimizer.domain)
    objective = ContrastiveDivergence()
    truth = space.enter(data, 0.05)
    potential = Potential.of(InCoordinates(net.energy, space), features).detached()
    negative = space.output(objective.sampler.run(potential, truth))
    low, high = net.energy(space.output(truth), features), net.energy(negative, features)
    assert plain == pytest.approx(float((low - high).mean()))
    with pytest.raises(ValueError, match="margin must lie"):
        ContrastiveDivergence(margin=1.0)
    with pytest.raises(ValueError, match="steps ≥ 1 and a positive rate"):
        Langevin(0)
    with pytest.raises(ValueError, match="at least one leapfrog step"):
        Hamiltonian(leapfrog=0)


def test_score_matching_by_value_on_a_gaussian() -> None:
    """½‖A(y − f)‖² − tr A."""
    energy = Gaussian(COVARIANCE.inverse())
    y, f = torch.randn(5, 2), torch.randn(5, 2)
    A = COVARIANCE.inverse()
    expected = float((0.5 * ((y - f) @ A).square().sum(1)).mean() - A.trace())
    exact = float(ScoreMatching(probes=None)(model(energy), f, y).detach())
    assert exact == pytest.approx(expected, rel=1e-4)
    probed = float(ScoreMatching(probes=400)(model(energy), f, y).detach())
    assert probed == pytest.approx(expected, abs=0.1)
    linear = float(ScoreMatching(probes=None)(model(Tilt()), f, y).detach())
    assert linear == pytest.approx(float(0.5 * f.square().sum(1).mean()), rel=1e-4)


def _fitted(objective: ScoreMatching | DenoisingScoreMatching, data: Tensor, steps: int) -> Tensor:
    energy = Gaussian(torch.eye(2))
    net, features = model(energy), torch.zeros_like(data)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * (1 - step / steps)
        optimizer.zero_grad()
        objective(net, features, data).backward()
        optimizer.step()
    return energy.precision.inverse().detach()


def test_score_matching_is_minimal_at_the_sample_covariance() -> None:
    data = torch.randn(500, 2) @ torch.linalg.cholesky(COVARIANCE).T
    second_moment = data.T @ data / 500
    assert torch.allclose(_fitted(ScoreMatching(probes=None), data, 400), second_moment, atol=0.02)


def test_denoising_score_matching_is_minimal_at_the_blurred_covariance() -> None:
    data = torch.randn(1500, 2) @ torch.linalg.cholesky(COVARIANCE).T
    blurred = data.T @ data / 1500 + 0.49 * torch.eye(2)
    assert torch.allclose(_fitted(DenoisingScoreMatching(0.7), data, 400), blurred, atol=0.15)


def test_denoising_score_matching_by_value() -> None:
    energy = Gaussian(COVARIANCE.inverse())
    y, f = torch.randn(5, 2), torch.randn(5, 2)
    torch.manual_seed(3)
    found = float(DenoisingScoreMatching(0.7)(model(energy), f, y).detach())
    torch.manual_seed(3)
    noise = torch.randn(5, 2)
    disturbed = y + 0.7 * noise
    score = -(disturbed - f) @ COVARIANCE.inverse()
    towards = (y - disturbed) / 0.49
    assert found == pytest.approx(float(0.5 * 0.49 * (score - towards).square().sum(1).mean()), rel=1e-4)


def test_coordinates_follow_the_bounds_of_a_box_and_the_dimension_of_a_simplex() -> None:
    y, z = torch.rand(4, 3, 2, dtype=torch.float64), torch.randn(4, 3, 2, dtype=torch.float64)
    unit, other = (
        Coordinates(Box("projected")),
        Coordinates(Box("projected", low=-1.0, high=torch.tensor([2.0, 3.0]).double())),
    )
    width = torch.tensor([3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(other.enter(width * y - 1, 0.1), unit.enter(y, 0.1))
    torch.testing.assert_close(other.output(z), width * unit.output(z) - 1)
    torch.testing.assert_close(other.log_volume(z), unit.log_volume(z))  # up to a constant
    last, first = Coordinates(Simplex()), Coordinates(Simplex(dim=1))
    point = torch.softmax(z, 1)
    torch.testing.assert_close(first.enter(point, 0.1).mT, last.enter(point.mT, 0.1))
    torch.testing.assert_close(first.output(z).mT, last.output(z.mT))
    torch.testing.assert_close(first.log_volume(z), last.log_volume(z.mT))


@pytest.mark.parametrize("domain", [Box("logits"), Simplex()], ids=str)
def test_scores_over_bounded_domains(domain: Domain) -> None:
    """In coordinates, the slope is that of U = E − log|dy/dz|, here against differences of the log-density of z."""
    truth = torch.softmax(torch.randn(4, 3, dtype=torch.float64), -1)
    features = torch.randn(4, 3, dtype=torch.float64)
    space = Coordinates(domain)
    z = space.enter(truth, 0.1)
    pulled = torch.lerp(truth, torch.full_like(truth, 0.5 if isinstance(domain, Box) else 1 / 3), 0.1)
    assert torch.allclose(space.output(z), pulled)
    jacobians = []
    for row in z:
        J = torch.autograd.functional.jacobian(lambda p: space.output(p[None])[0], row)
        if isinstance(domain, Simplex):  # K − 1 outputs against K − 1 differences of z
            J = J[:-1, :-1]
        jacobians.append(torch.linalg.det(J).abs().log())
    centre = 0.5 * 3 * z.mean(-1).square() if isinstance(domain, Simplex) else 0.0
    assert torch.allclose(space.log_volume(z), torch.stack(jacobians) - centre)
    for objective in (ScoreMatching(probes=None, margin=0.1), DenoisingScoreMatching(0.3, margin=0.1)):
        assert bool(objective(model(Tilt(), domain), features, truth).isfinite())


OBJECTIVES = [
    ContrastiveDivergence(Hamiltonian()),
    ScoreMatching(),
    DenoisingScoreMatching(),
    StructuredHinge(squared_error),
    DeepValue(lambda y, t: 1 - squared_error(y, t)),
    InferenceNetwork(squared_error),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("domain", [Reals(), Box("projected"), Simplex()], ids=str)
def test_targets_may_be_integers_or_double(objective: Objective, domain: Domain) -> None:
    """They are points of the domain in the type the model computes in."""
    x, labels = torch.randn(4, 2), nn.functional.one_hot(torch.tensor([0, 1, 1, 0]), 2)
    values = []
    for target in (labels.float(), labels, labels.double()):
        torch.manual_seed(1)
        values.append(objective(model(Gaussian(COVARIANCE), domain), x, target))
    assert all(v.item() == pytest.approx(values[0].item(), rel=1e-5) for v in values)


@pytest.mark.parametrize("objective", [*OBJECTIVES[:3], OBJECTIVES[-1]], ids=lambda o: type(o).__name__)
def test_inference_mode_is_named(objective: Objective) -> None:
    sentence = r"dE/dy cannot be computed under torch\.inference_mode\(\): use torch\.no_grad\(\) instead"
    with torch.inference_mode(), pytest.raises(ValueError, match=sentence):
        objective(model(Gaussian(COVARIANCE)), torch.randn(4, 2), torch.randn(4, 2))


def test_misuse_of_the_scores_is_named() -> None:
    class Nowhere(Reals):
        pass

    with pytest.raises(ValueError, match="at least one probe"):
        ScoreMatching(probes=0)
    with pytest.raises(ValueError, match="noise must be positive"):
        DenoisingScoreMatching(0.0)
    with pytest.raises(ValueError, match="margin must lie"):
        ScoreMatching(margin=-0.1)
    with pytest.raises(ValueError, match="has no free coordinates"):
        Coordinates(nn.Identity())  # type: ignore[arg-type]
