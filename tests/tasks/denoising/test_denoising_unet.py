"""The energy of a denoiser: its contract, its gradient by formula, its net as a feed-forward denoiser, its training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import spen
from spen.domains import Reals
from spen.gradients import Exact, GradientStrategy, Written
from spen.objectives import EndToEnd
from spen.rules import Momentum
from spen.tasks.denoising import unet, unet_gradient
from spen.tasks.denoising.build import FillHoles, build, build_model
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.losses import Target, masked_squared_error
from spen.tasks.denoising.methods import System
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.unet import SHARE, DenoiserEnergy, UNetDenoiser, UNetPrior
from spen.tasks.denoising.unet_gradient import WrittenUNet
from spen.testing import check_energy


def size_of(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def _observation(*size: int) -> Observation:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 1, *size, generator=generator, dtype=torch.float64)
    seen = (torch.rand(2, 1, *size, generator=generator) > 0.2).double()
    return Observation(image * seen, seen)


def _energy(*, blind: bool = False, scales: int = 3) -> DenoiserEnergy:
    torch.manual_seed(0)
    return DenoiserEnergy(UNetPrior(4, 1, scales=scales, scale=2.5, blind=blind), 3.0).double()


def test_the_energy_keeps_its_contract_at_any_size() -> None:
    x = _observation(9, 11)
    y = torch.rand(2, 1, 9, 11, dtype=torch.float64)
    energy = _energy()
    check_energy(energy, y, x)
    assert energy.net.net(energy.net.planes(y, x)).shape == y.shape
    assert [name for name, _, _ in energy.terms()] == ["local", "prior"]
    assert energy.formula(x) is None  # 9 and 11 are no multiples of four: autograd takes over


def test_the_planes_are_what_the_formula_says() -> None:
    x = _observation(12, 16)
    y = torch.rand(2, 1, 12, 16, dtype=torch.float64)
    fine, level, holes, moved = UNetPrior(4, 1, scale=2.5).double().planes(y, x).unbind(1)
    assert torch.allclose(fine / 2.5 + level + 0.5, y[:, 0])
    assert torch.allclose(level[0, 6, 8] + 0.5, y[0, 0, 2:11, 4:13].mean())
    assert torch.allclose(level[0, 0, 0] + 0.5, y[0, 0, :5, :5].mean())
    assert torch.equal(holes, 1 - x.seen[:, 0])
    assert torch.allclose(moved, 2.5 * (x.seen * (y - x.image))[:, 0])
    blind = UNetPrior(4, 1, scale=2.5, blind=True).double().planes(y, x)
    assert torch.allclose(blind, torch.stack([3 * (fine / 3).asinh(), holes, 3 * (moved / 3).asinh()], 1))


@pytest.mark.parametrize("blind", [False, True])
def test_the_energy_is_a_square_less_that_of_the_fine_structure_if_blind(blind: bool) -> None:
    x, prior = _observation(12, 16), _energy(blind=blind).net
    y = torch.rand(2, 1, 12, 16, dtype=torch.float64)
    planes = prior.planes(y, x)
    noise, fine = prior.net(planes), planes[:, :1]
    expected = (noise + SHARE * fine).square() - blind * (SHARE * fine).square()
    torch.testing.assert_close(prior(y, x), expected.flatten(1).sum(1) / 2)


@pytest.mark.parametrize("blind", [False, True])
def test_the_formula_is_the_gradient(blind: bool) -> None:
    x, energy = _observation(12, 16), _energy(blind=blind)
    y = torch.rand(2, 1, 12, 16, dtype=torch.float64, requires_grad=True)
    formula = energy.formula(x)
    assert formula is not None
    slope, energies = formula(y)
    whole = energy(y, x)
    (expected,) = torch.autograd.grad(whole.sum(), y)
    torch.testing.assert_close(energies, whole)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("blind", [False, True])
def test_a_net_that_finds_nothing_can_learn_and_smooths_edges_unless_blind(blind: bool) -> None:
    x = Observation(torch.zeros(1, 1, 24, 24, dtype=torch.float64), torch.ones(1, 1, 24, 24, dtype=torch.float64))
    step = torch.zeros_like(x.image)
    step[..., 12:] = 0.5
    energy = _energy(blind=blind)
    leave = energy.net.net.leave.weight
    leave.data.zero_()
    formula = energy.net.formula(x)
    assert formula is not None
    assert (float(formula(step)[0].detach().norm()) == 0) == blind
    leave.data.normal_(generator=torch.Generator().manual_seed(0)).mul_(1e-9)
    y = step + 0.01 * torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = _gradients(energy, Written(), x._replace(image=y), step)
    found = dict(zip(dict(energy.named_parameters()), gradients, strict=False))
    assert float(found["parts.prior.energy.net.leave.weight"].norm()) > 1e-6


def _gradients(energy: DenoiserEnergy, strategy: GradientStrategy, x: Observation, truth: Tensor) -> list[Tensor]:
    rule = Momentum(3, 0.1, decay=0.25, learn_rates=True).double()
    model = spen.SPEN(energy=energy, init=FillHoles(), minimizer=spen.Minimizer(Reals(), rule, strategy))
    loss = EndToEnd(masked_squared_error)(model, x, Target(truth, x.seen))
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("scales", [1, 2, 3])
def test_learning_by_the_formula_is_double_backprop(blind: bool, scales: int) -> None:
    x, energy = _observation(12, 16), _energy(blind=blind, scales=scales)
    truth = torch.rand(2, 1, 12, 16, dtype=torch.float64)
    exact, written = (_gradients(energy, s, x, truth) for s in (Exact(), Written()))
    for a, b in zip(exact, written, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert bool(a.abs().sum() > 0)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs as torch.compile traces and differentiates them, on any machine; the kernels are the usual ones."""
    monkeypatch.setattr(unet, "_HOW", {"backend": "aot_eager", "dynamic": False})
    monkeypatch.setattr(UNetPrior, "_compiles", lambda prior, like: prior.compiled and prior.training)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("name", ["spen-best", "unet"])
def test_compiled_training_is_the_training_that_is_not(name: str, blind: bool) -> None:
    x = _observation(12, 16)
    target = Target(torch.rand(2, 1, 12, 16, dtype=torch.float64), x.seen)
    scales = 2 if name == "unet" else 1  # one scale less to trace: the formula is compared with autograd above
    recipe = find_recipe(name).with_options(width=4, blocks=1, scales=scales, blind=blind)
    answers = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, objective = build(recipe, find_regime("rooms"))
        model = model.double().train()
        (prior,) = [part for part in model.modules() if isinstance(part, UNetPrior)]
        assert prior.compiled
        prior.compiled, prior.precision = compiled, None
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            objective(model, x, target).backward()
            optimizer.step()
        assert (prior in unet._PROGRAMS) == compiled
        answers.append([p.detach() for p in model.parameters()])
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_what_is_compiled_is_trained_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = _observation(12, 16), []
    prior = UNetPrior(4, 1, compiled=True).double()
    monkeypatch.setattr("spen.tasks.denoising.unet.program_of", lambda prior: calls.append(prior))
    formula = prior.formula(x)
    assert formula is not None
    formula(x.image)
    prior.denoised(x.image, x)
    assert not calls


def test_rounded_operands_change_the_gradient_a_little() -> None:
    x = Observation(*(part.float() for part in _observation(16, 16)))
    torch.manual_seed(0)
    prior = UNetPrior(8, 1, scale=2.5)
    planes = prior.planes(torch.rand(2, 1, 16, 16), x)
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        answers = []
        for precision in (None, torch.bfloat16):
            noise, pull_back = WrittenUNet(prior.net, precision)(planes)
            assert noise.dtype is torch.float32
            answers.append(pull_back(noise))
    error = float((answers[0] - answers[1]).norm() / answers[0].norm())
    assert 1e-5 < error < 2e-2
    assert torch.allclose(noise, prior.net(planes), atol=2e-2)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_fused_backward_pass_of_a_slope_is_that_of_autograd(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, close: float, layout: torch.memory_format
) -> None:
    monkeypatch.setattr(unet_gradient, "_LARGE", 0)
    bar, v, z = (t.to(dtype).to(memory_format=layout) for t in torch.randn(3, 2, 8, 6, 6))
    wide_v, wide_z = (t.double().requires_grad_() for t in (v, z))
    s = torch.sigmoid(wide_z)
    expected = torch.autograd.grad(wide_v * s * (1 + wide_z * (1 - s)), (wide_v, wide_z), bar.double())
    leaves = [t.requires_grad_() for t in (v, z)]
    found = torch.autograd.grad(unet_gradient._Slope.apply(*leaves), leaves, bar)
    for one, other in zip(found, expected, strict=True):
        assert one.is_contiguous(memory_format=layout)
        torch.testing.assert_close(one.double(), other, rtol=close, atol=close)


def test_operands_are_rounded_on_a_cpu_in_training_alone_and_not_in_a_prior_that_a_gpu_compiles() -> None:
    x = Observation(*(part.float() for part in _observation(16, 16)))
    y = torch.rand(2, 1, 16, 16)
    answers = {}
    for compiled in (False, True):
        torch.manual_seed(0)
        prior = UNetPrior(8, 1, scale=2.5, precision=torch.bfloat16, compiled=compiled)
        for training in (False, True):
            formula = prior.train(training).formula(x)
            assert formula is not None
            answers[compiled, training] = formula(y)[0].detach()
    exact = answers[False, False]
    assert torch.equal(exact, answers[True, True])
    assert torch.equal(exact, answers[True, False])
    assert 1e-5 < float((answers[False, True] - exact).norm() / exact.norm()) < 2e-2


@pytest.mark.parametrize("blind", [False, True])
def test_the_feed_forward_net_is_the_same_net(blind: bool) -> None:
    x = Observation(*(part.float() for part in _observation(12, 16)))
    net = UNetDenoiser(UNetPrior(4, 1, scale=2.5, blind=blind, precision=torch.bfloat16, compiled=True))
    start = FillHoles()(x)
    planes = net.prior.planes(start, x)
    expected = start - ((not blind) * SHARE * planes[:, :1] + net.prior.net(planes)) / 2.5
    with torch.no_grad():
        for mode in (True, False):  # written out or not, full precision on a CPU
            assert torch.allclose(net.train(mode)(x), expected, atol=1e-6)
    best = find_recipe("spen-best").method
    assert isinstance(best, System)
    feed_forward, _ = build(find_recipe("unet"), find_regime("rooms"))
    assert size_of(build_model(best, 2.5)) - best.steps - 1 == size_of(feed_forward)


@pytest.mark.parametrize("name", ["unet", "spen-best"])
def test_blocks_and_scales_size_the_net(name: str) -> None:
    def count(**options: int) -> int:
        return size_of(build(find_recipe(name).with_options(width=4, **options), find_regime("rooms"))[0])

    block, down = 2 * (9 * 16 + 4), 4 * 4 * 8 + 8  # two convolutions of 4 channels; 2×2 from 4 to 8
    assert count(scales=1, blocks=3) - count(scales=1, blocks=2) == block
    wider = 2 * (2 * (9 * 64 + 8))
    assert count(scales=2) - count(scales=1) == wider + 2 * block + down + (4 * 8 * 4 + 4)


@pytest.mark.parametrize("name", ["unet", "spen-best"])
def test_the_gain_scales_what_the_net_reads(name: str) -> None:
    x = Observation(*(part.float() for part in _observation(12, 16)))
    answers = []
    for gain in (1.0, 10.0):
        torch.manual_seed(0)
        model, objective = build(find_recipe(name).with_options(width=4, gain=gain), find_regime("rooms"))
        with torch.no_grad():
            answers.append(objective.predict(model, x))
    assert not torch.allclose(*answers, atol=1e-6)


def test_a_prior_without_a_formula_is_told() -> None:
    method = find_recipe("dp-3").with_options(gradient="written").method
    assert isinstance(method, System)
    with pytest.raises(ValueError, match="the prior 'deep' has no formula of its gradient; use another gradient"):
        build_model(method, 2.5)


@pytest.mark.parametrize("name", ["unet", "spen-best"])
def test_a_net_for_depth_does_not_read_the_level(name: str) -> None:
    for data, planes in (("redkitchen", 3), ("gaussian", 4)):
        model, _ = build(find_recipe(name, data).with_options(width=4), find_regime(data))
        (prior,) = [part for part in model.modules() if isinstance(part, UNetPrior)]
        assert (prior.blind, prior.net.enter.in_channels) == (planes == 3, planes)
