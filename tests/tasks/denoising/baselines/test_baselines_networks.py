"""Proxes against brute force, the adjoint by its definition, the unrolled iterations against an independent optimum."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor
from torchmetrics import MeanMetric

import spen
from spen.domains import Reals
from spen.minimizer import Minimizer
from spen.objectives import Feedforward
from spen.rules import GradientDescent
from spen.tasks.denoising.baselines.networks import (
    ConvNet,
    ProximalNet,
    fold_reflected,
    lowest_cosines,
    project_linf,
    prox_masked_square,
    spectral_bound,
)
from spen.tasks.denoising.energy import DataTerm, Observation
from spen.tasks.denoising.holes import fill_pyramid
from spen.training import Stage, TensorSource, fit


def observed(batch: int = 2, height: int = 12, width: int = 15, share: float = 0.8) -> Observation:
    seen = (torch.rand(batch, 1, height, width, dtype=torch.double) < share).double()
    return Observation(torch.rand(batch, 1, height, width, dtype=torch.double) * seen, seen)


# ── proximal steps ──


@pytest.mark.parametrize("seen", [0.0, 1.0])
@pytest.mark.parametrize("step", [0.1, 2.0])
def test_the_prox_of_the_masked_square_is_its_minimiser(seen: float, step: float) -> None:
    v, x = 0.7, -0.4
    found = optimize.minimize_scalar(lambda y: seen * (y - x) ** 2 + (y - v) ** 2 / (2 * step), tol=1e-12).x
    answer = prox_masked_square(torch.tensor(v), torch.tensor(x), torch.tensor(seen), step)
    assert float(answer) == pytest.approx(found, abs=1e-6)


def test_the_dual_prox_is_that_of_the_l1_norm_by_moreau() -> None:
    """u − Π_{|·| ≤ r}(u) must be the soft threshold: the minimiser of ½(z − u)² + r|z|, here on a fine grid."""
    dual, radius = torch.linspace(-2, 2, 9, dtype=torch.double), torch.tensor(0.6, dtype=torch.double)
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.double)
    objective = 0.5 * (grid[None] - dual[:, None]).square() + radius * grid.abs()[None]
    soft = grid[objective.argmin(1)]
    assert torch.allclose(dual - project_linf(dual, radius), soft, atol=2e-4)


@pytest.mark.parametrize(("height", "width", "margin"), [(5, 9, 3), (4, 4, 3), (8, 5, 0), (2, 6, 1)])
def test_folding_is_the_adjoint_of_reflection(height: int, width: int, margin: int) -> None:
    x = torch.randn(2, 1, height, width, dtype=torch.double)
    u = torch.randn(2, 1, height + 2 * margin, width + 2 * margin, dtype=torch.double)
    padded = torch.nn.functional.pad(x, (margin,) * 4, mode="reflect")
    assert float((padded * u).sum()) == pytest.approx(float((x * fold_reflected(u, margin)).sum()), rel=1e-12)


@pytest.mark.parametrize(("size", "height", "width"), [(7, 12, 15), (7, 4, 5), (3, 6, 2)])
def test_synthesis_is_the_adjoint_of_analysis(size: int, height: int, width: int) -> None:
    net = ProximalNet(filters=5, size=size).double()
    y = torch.randn(2, 1, height, width, dtype=torch.double)
    u = torch.randn(2, 5, height, width, dtype=torch.double)
    left, right = (net.analyse(y) * u).sum().detach(), (y * net.synthesise(u)).sum().detach()
    assert float(left) == pytest.approx(float(right), rel=1e-10)


def test_the_filters_start_with_an_operator_norm_near_one() -> None:
    net = ProximalNet().double()
    assert float(spectral_bound(net.filters()).detach()) == pytest.approx(1, abs=1e-5)
    y = torch.randn(1, 1, 40, 40, dtype=torch.double)
    with torch.no_grad():
        for _ in range(60):
            y = net.synthesise(net.analyse(y))
            size = float(y.norm())
            y = y / size
    assert 0.9 < size**0.5 < 1.2, "reflection may add a little at the border"
    assert float(net.dual_steps().max() * net.primal_steps().max()) * size < 1, "so that the iterations converge"


def energy(net: ProximalNet, y: Tensor, observation: Observation) -> Tensor:  # (B, 1, H, W) -> (B,)
    """‖m·s(y − x)‖² + Σ_k λ_k ‖f_k ∗ s·y‖₁, in the scaled units s·y that the iterations use."""
    data = (net.scale * (y - observation.image)).square() * observation.seen
    prior = net.thresholds()[:, None, None] * net.analyse(net.scale * y).abs()
    return (data.flatten(1).sum(1) + prior.flatten(1).sum(1)).detach()


def dense(net: ProximalNet, height: int, width: int) -> np.ndarray:
    """K as a matrix, column by column."""
    basis = torch.eye(height * width, dtype=torch.double).view(-1, 1, height, width)
    return net.analyse(basis).detach().flatten(1).T.numpy()


def test_a_long_unrolling_reaches_the_optimum_of_the_dual_problem() -> None:
    """min ‖y − x‖² + λ‖Ky‖₁ has the dual min_{|u| ≤ λ} ‖x − Kᵀu/2‖², which L-BFGS-B solves, with y = x − Kᵀu/2."""
    x = Observation(torch.rand(1, 1, 6, 7, dtype=torch.double), torch.ones(1, 1, 6, 7, dtype=torch.double))
    net = ProximalNet(filters=3, size=3, iterations=1500, strength=0.15, step=0.95).double()
    K, target = dense(net, 6, 7), x.image.flatten().numpy()

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        rest = target - K.T @ u / 2
        return float(rest @ rest), -K @ rest

    solved = optimize.minimize(
        value, np.zeros(len(K)), jac=True, bounds=[(-0.15, 0.15)] * len(K), method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 50_000, "ftol": 0.0, "gtol": 1e-10},
    )  # fmt: skip
    expected = target - K.T @ solved.x / 2
    with torch.no_grad():
        answer = net(x).flatten().numpy()
    assert np.abs(answer - expected).max() < 1e-5
    assert np.abs(answer - target).max() > 0.05, "the problem is not trivial"


def test_with_holes_a_long_unrolling_reaches_the_minimum_too() -> None:
    """The same with a mask: the optimum by L-BFGS on a smoothed ℓ1 norm, whose value is within N·K·λ·ε of the truth."""
    observation = observed(1, 6, 7, share=0.6)
    net = ProximalNet(filters=3, size=3, iterations=4000, strength=0.2, step=0.8, scale=2.0).double()
    K, eps = dense(net, 6, 7), 1e-5
    x, m = 2 * observation.image.flatten().numpy(), observation.seen.flatten().numpy()

    def value(y: np.ndarray) -> tuple[float, np.ndarray]:
        response = K @ y
        root = np.sqrt(response**2 + eps**2)
        return float((m * (y - x) ** 2).sum() + 0.2 * root.sum()), 2 * m * (y - x) + K.T @ (0.2 * response / root)

    start = x
    solved = optimize.minimize(value, start, jac=True, method="L-BFGS-B",
                               options={"maxiter": 50_000, "maxfun": 200_000, "ftol": 1e-16, "gtol": 1e-9})  # fmt: skip
    with torch.no_grad():
        answer = net(observation)
        reached = float(energy(net, answer, observation))
    assert reached == pytest.approx(solved.fun, abs=0.2 * eps * len(K) + 1e-4)
    assert reached < 0.99 * float(energy(net, fill_pyramid(*observation), observation))


def test_five_iterations_are_the_first_of_many_and_the_energy_falls() -> None:
    observation = observed()
    torch.manual_seed(3)
    short = ProximalNet(strength=0.05).double()
    torch.manual_seed(3)
    long = ProximalNet(strength=0.05, iterations=30).double()
    path = long.iterates(observation)
    assert torch.equal(short(observation), path[5])
    assert torch.equal(path[0], fill_pyramid(*observation))
    energies = [float(energy(long, y, observation).sum()) for y in path]
    assert energies[30] < energies[5] < energies[0]


def test_scale_is_a_change_of_units() -> None:
    """s·λ in place of λ at scale s poses the same problem: quadratic by s², prior by s·s."""
    observation = observed()
    torch.manual_seed(1)
    plain = ProximalNet(strength=0.1).double()
    torch.manual_seed(1)
    scaled = ProximalNet(strength=0.4, scale=4.0).double()
    assert torch.allclose(plain(observation), scaled(observation), atol=1e-6)
    assert torch.allclose(
        16 * energy(plain, observation.image, observation), energy(scaled, observation.image, observation)
    )


def test_the_filters_start_as_cosines_and_stay_blind_to_absolute_depth() -> None:
    kernel = lowest_cosines(24, 5).double().flatten(1)
    assert torch.allclose(kernel @ kernel.T, torch.eye(24, dtype=torch.double), atol=1e-6)
    assert torch.allclose(kernel.sum(1), torch.zeros(24, dtype=torch.double), atol=1e-5)
    net, observation = ProximalNet().double(), observed()
    with torch.no_grad():
        net.kernel += 0.1
    lifted = Observation(observation.image + 3 * observation.seen, observation.seen)
    assert torch.allclose(net(lifted), net(observation) + 3, atol=1e-6)


def test_gradients_reach_every_parameter_by_value() -> None:
    net = ProximalNet(filters=2, size=3, iterations=3, strength=0.05).double()
    observation = observed(1, 5, 6)
    names = [name for name, _ in net.named_parameters()]
    assert names == ["kernel", "thresholds.log", "dual_steps.log", "primal_steps.log"]

    def loss(*values: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (observation,)).square().sum()

    torch.autograd.gradcheck(loss, [p.detach().clone().requires_grad_() for p in net.parameters()], atol=1e-4)


# ── the convnet ──


def test_a_residual_net_starts_as_the_identity_on_the_filled_image() -> None:
    observation = observed()
    assert torch.allclose(ConvNet(scale=10.0).double()(observation), fill_pyramid(*observation))


def stirred(**options: object) -> ConvNet:
    torch.manual_seed(0)
    net = ConvNet(**options).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(net.last.weight, std=0.3)
    return net


def test_a_blind_net_passes_absolute_values_through() -> None:
    observation = observed()
    lifted = Observation(observation.image + 3 * observation.seen, observation.seen)
    net = stirred()
    assert torch.allclose(net(lifted), net(observation) + 3)
    with torch.no_grad():
        net.first.weight += 0.01
    assert torch.allclose(net(lifted), net(observation) + 3), "whatever training does to the kernels"
    seeing = stirred(blind=False)
    with torch.no_grad():
        seeing.first.weight += 0.01
    assert not torch.allclose(seeing(lifted), seeing(observation) + 3, atol=1e-2)


def test_the_shape_of_the_deep_prior_by_hand() -> None:
    """7×7×32, SoftPlus, 7×7×32, SoftPlus, 1×1×1, with reflection, without extras."""
    net = stirred(residual=False, blind=False, mask=False, scale=2.0)
    assert sum(p.numel() for p in net.parameters()) == (49 + 1) * 32 + (32 * 49 + 1) * 32 + 33
    observation = observed(share=1.1)
    hidden = 2 * observation.image
    for layer in (net.first, net.rest[0]):
        padded = torch.nn.functional.pad(hidden, (3,) * 4, mode="reflect")
        response = torch.nn.functional.conv2d(padded, layer.weight, layer.bias)
        hidden = torch.log1p(torch.exp(25 * response)) / 25
    expected = torch.nn.functional.conv2d(hidden, net.last.weight, net.last.bias) / 2
    assert torch.allclose(net(observation), expected, atol=1e-8)


def test_every_knob_of_the_convnet_turns() -> None:
    observation = observed()
    plain = stirred()(observation)
    for turned in (
        {"width": 8}, {"size": 5}, {"depth": 3}, {"temperature": 5.0}, {"scale": 3.0}, {"blind": False},
        {"mask": False}, {"residual": False, "blind": False},
    ):  # fmt: skip
        net = stirred(**turned)
        with torch.no_grad():
            net.first.weight += 0.01
        other = net(observation)
        assert other.shape == plain.shape
        assert not torch.allclose(other, plain), turned


def test_the_mask_channel_is_silent_without_holes() -> None:
    whole = observed(share=1.1)
    net = stirred()
    before = net(whole)
    with torch.no_grad():
        net.first.weight[:, 1] += 1
    assert torch.equal(net(whole), before)
    assert not torch.equal(net(observed()), before)


# ── training ──


@pytest.mark.parametrize(
    "make", [lambda: ConvNet(8, 3, scale=2.0), lambda: ProximalNet(8, 3, scale=2.0)], ids=["convnet", "proximal"]
)
def test_the_library_trains_it(make: Callable[[], torch.nn.Module], tmp_path: Path) -> None:
    truth = torch.where(torch.arange(16) < 8, 0.3, 0.7).expand(8, 1, 16, 16).contiguous()
    noisy = truth + 0.05 * torch.randn(truth.shape)
    seen = (torch.rand(truth.shape) > 0.1).float()
    data = TensorSource(Observation(noisy * seen, seen), truth, 4)

    class Error(MeanMetric):
        higher_is_better = False

        def update(self, prediction: Tensor, target: Tensor) -> None:  # type: ignore[override]
            super().update((prediction - target).square().mean())

    loss = Feedforward(lambda y, target: (y - target).square().flatten(1).mean(1))
    model = spen.SPEN(energy=DataTerm(), init=make(), minimizer=Minimizer(Reals(), GradientDescent(steps=1, rate=0.1)))
    x = Observation(noisy * seen, seen)
    before = float(loss(model, x, truth).detach())
    stage = Stage(name="feedforward", objective=loss, epochs=20, learning_rate=3e-2)
    fit(model, [stage], data, data, Error(), out=tmp_path / "run", accelerator="cpu", progress=False)
    after = float(loss(model, x, truth).detach())
    assert after < 0.8 * before


def test_errors_say_what_came() -> None:
    with pytest.raises(ValueError, match="at least one layer of one channel, not depth 0 and width 32"):
        ConvNet(depth=0)
    with pytest.raises(ValueError, match="blind to absolute values cannot answer with them; use residual=True"):
        ConvNet(residual=False)
    with pytest.raises(ValueError, match="its size must be odd, not 4"):
        ProximalNet(size=4)
    with pytest.raises(ValueError, match="needs an iteration and a filter, not 0 and 32"):
        ProximalNet(iterations=0)
    with pytest.raises(ValueError, match="3×3 pixels have 8 cosines without a mean, but 9 filters"):
        ProximalNet(9, 3)
    with pytest.raises(ValueError, match="the scale must be positive and finite, not 0"):
        ConvNet(scale=0.0)
    with pytest.raises(ValueError, match="the step of a proximal net must be positive"):
        ProximalNet(step=-1.0)
    flat = torch.zeros(1, 1, 3, 9)
    with pytest.raises(ValueError, match="an image of 9×3 is too small: reflection by 3 needs 4 pixels"):
        ConvNet()(Observation(flat, flat))
    with pytest.raises(ValueError, match=r"image has shape \(1, 3, 9\) and seen \(1, 3, 9\), but both must be \(B, 1"):
        ProximalNet()(Observation(flat[0], flat[0]))
