"""Noise as it is written, added, estimated and told to a model: by value on images of known noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spen.gradients import Exact, Written
from spen.objectives import EndToEnd
from spen.tasks.denoising.build import WithNoise, build
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Rooms, Simulated
from spen.tasks.denoising.energy import NoisyObservation, Observation
from spen.tasks.denoising.images import PEAK_M
from spen.tasks.denoising.leaves import Leaves
from spen.tasks.denoising.losses import Target, log_squared_error, masked_squared_error, planes
from spen.tasks.denoising.noise import Noise, parse_noise
from spen.tasks.denoising.noise_estimate import gaussian_sigma, noise_estimate, sensor_strength
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.simulate import CORRELATED, OUTLIER_M, SENSOR_UNIT, draw_levels, noisy, read_again
from spen.tasks.denoising.sources import CropSource

# ── as it is written ──


@given(
    st.sampled_from(
        [("gaussian", 0.0), ("poisson", 0.0), ("depth-sensor", 0.0), ("depth-sensor", 0.5), ("depth-sensor", 1.0)]
    ),
    st.floats(0.5, 100).map(lambda x: round(x, 2)),
    st.floats(0, 100).map(lambda x: round(x, 2)),
)
def test_noise_reads_as_it_is_written(kind: tuple[Any, float], low: float, more: float) -> None:
    noise = Noise(kind[0], low, low + more, kind[1])
    again = parse_noise(str(noise))
    assert (again.kind, again.fixed, again.correlated) == (noise.kind, noise.fixed, noise.correlated)
    assert (again.low, again.high) == (pytest.approx(noise.low, rel=1e-5), pytest.approx(noise.high, rel=1e-5))


@pytest.mark.parametrize("text", ["gaussian", "gaussian:", "gaussian:x", "salt:3", "gaussian:-3", "gaussian:1-2-3", ""])
def test_unknown_noise_gets_the_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"--noise is gaussian:SIGMA .*poisson:PEAK .*depth-sensor:STRENGTH .*, not "):
        parse_noise(text)


@pytest.mark.parametrize(
    ("text", "why"), [("gaussian:9-3", "begins with its smaller"), ("poisson:0", "no light at all")]
)
def test_noise_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_noise(text)


# ── as it is added ──


def test_levels_of_a_sensor_are_drawn_evenly_in_the_logarithm() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = draw_levels(parse_noise("kinect:0.5-8"), 4000, generator)
    assert 0.5 <= float(levels.min()) < 0.51
    assert float((levels < 2).float().mean()) == pytest.approx(0.5, abs=0.03)
    even = draw_levels(parse_noise("gaussian:0-8"), 4000, generator)
    assert float((even < 2).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_the_noise_level_of_correlated_noise_is_what_will_be_estimated() -> None:
    """Of whole frames, for which the estimate is known, at both ends of the range."""
    frames = Rooms("train", 4)
    for strength in (0.5, 15):
        for name in (f"depth-sensor:{strength}", f"kinect:{strength}"):
            crops = Crops(frames, frames.truth(0).shape[1:], noise=parse_noise(name), kind="depth-sensor")
            batch, level = crops.noisy_batch(0, 0, 4)
            estimate = noise_estimate(Observation(batch.noisy, batch.valid.float()), "depth-sensor").flatten()
            assert level is not None
            assert torch.allclose(level, estimate, rtol=0.16), name
    mixed = Crops(frames, (32, 48), noise=parse_noise("depth-sensor|kinect:2"), kind="depth-sensor")
    levels = torch.cat([level for k in range(10) if (level := mixed.noisy_batch(0, 4 * k, 4)[1]) is not None])
    found = {round(float(v), 2) for v in levels / SENSOR_UNIT}
    assert found == {2.0, round(2 * CORRELATED, 2)}


def test_the_loss_of_a_range_of_noise_counts_decibels() -> None:
    truth = torch.zeros(2, 1, 4, 4)
    target = Target(truth, torch.ones_like(truth))
    y = torch.stack([torch.full((1, 4, 4), 0.01), torch.full((1, 4, 4), 0.1)])
    first, second = log_squared_error(y, target, floor=1e-9).tolist()
    assert second - first == pytest.approx(math.log(10))  # 20 dB
    assert float(log_squared_error(truth, target, floor=0.1)[0]) == pytest.approx(math.log(0.1))
    told = build(find_recipe("depth").with_options(width=4), find_regime("rooms-any"))[1]
    assert isinstance(told, EndToEnd)
    assert told.loss.func is log_squared_error  # type: ignore[attr-defined]


def test_photons_have_the_variance_of_their_mean() -> None:
    truth = torch.full((1, 1, 200, 200), 0.5)
    counted = noisy(parse_noise("poisson:30"), truth, torch.tensor([30.0]), torch.Generator().manual_seed(0))
    assert float(counted.mean()) == pytest.approx(0.5, rel=0.01)
    assert float(counted.var()) == pytest.approx(0.5 / 30, rel=0.03)
    # Of colours the three channels are counted, not the planes.
    grey = torch.cat([3**0.5 * truth, torch.zeros(1, 2, 200, 200)], 1)
    counted = noisy(parse_noise("poisson:30"), grey, torch.tensor([30.0]), torch.Generator().manual_seed(0))
    assert counted.var((2, 3))[0].tolist() == pytest.approx([0.5 / 30] * 3, rel=0.05)


def test_every_crop_has_a_level_of_its_own_and_the_model_is_told_it() -> None:
    frames = Simulated(Leaves(2), parse_noise("gaussian:0-55"))
    crops = Crops(frames, (32, 32), noise=parse_noise("gaussian:0-55"), kind="gaussian")
    frame, told = crops.noisy_batch(0, 0, 6)
    assert told is not None
    assert frame.noisy.shape == (18, 1, 32, 32)  # three planes each
    levels = told.view(6, 3)
    assert torch.equal(levels[:, 0], levels[:, 2])
    assert len(set(levels[:, 0].tolist())) == 6
    assert float(levels.max()) <= 55 / 255
    found = (frame.noisy - frame.truth).flatten(1).std(1)
    assert found.tolist() == pytest.approx(told.tolist(), rel=0.1)
    assert torch.equal(told, crops.noisy_batch(0, 0, 6)[1])  # type: ignore[arg-type]
    x, _ = next(iter(CropSource(crops, 6, 1).batches(0)))
    assert float((x.noise.flatten() / told).log().std()) == pytest.approx(0.1, rel=0.5)  # with the error of an estimate


def test_a_sensor_reads_each_crop_at_its_own_strength() -> None:
    noise = parse_noise("depth-sensor:1-15")
    crops = Crops(Rooms("train", 2), (96, 128), noise=noise, kind="depth-sensor")
    frame, told = crops.noisy_batch(0, 0, 4)
    assert told is not None
    assert told.min() >= SENSOR_UNIT
    error = (frame.noisy - frame.truth).abs() / frame.truth.square().clamp_min(1e-6)  # of disparity
    spread = torch.stack([e[s].median() for e, s in zip(error, frame.surface, strict=True)])
    assert torch.equal(spread.argsort(), told.argsort())


def test_dead_leaves_are_seeded_and_cover_the_image() -> None:
    first, second = Leaves(2), Leaves(2, seed=1)
    image = first.truth(0)
    assert image.shape == (3, 192, 192)
    assert torch.equal(image, Leaves(2).truth(0))
    assert not torch.equal(image, first.truth(1))
    assert not torch.equal(image, second.truth(0))
    assert 0 <= float(image[0].min()) <= float(image[0].max()) <= 3**0.5 + 1e-5
    assert float(image[0].std()) > 0.1
    assert float(image[1].std()) > 0.02  # in colour
    with pytest.raises(ValueError, match="count is 0 but there must be at least one image"):
        Leaves(0)


# ── as it is estimated ──


def test_the_noise_of_images_is_found() -> None:
    """To 10 % on images with texture; `python docs/scripts/noise_estimates.py` has the table of set12."""
    for index in range(2):
        truth = Leaves(2, seed=3).truth(index)[None]
        for sigma in (5.0, 25.0, 50.0):
            generator = torch.Generator().manual_seed(index)
            image = noisy(parse_noise(f"gaussian:{sigma}"), truth, torch.tensor([sigma]), generator)[0]
            assert 255 * float(gaussian_sigma(image[:, None]).min()) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize("strength", [1.0, 4.0, 15.0])
def test_the_strength_of_a_sensor_is_found(strength: float) -> None:
    for index in range(2):
        x = planes(Simulated(Rooms("dev", 2), parse_noise(f"depth-sensor:{strength}")).frame(index))
        assert float(sensor_strength(x.image, x.seen)) == pytest.approx(strength, rel=0.1)


def test_overexposed_pixels_do_not_hide_the_noise() -> None:
    image = 0.5 + 0.1 * torch.randn(1, 1, 96, 96, generator=torch.Generator().manual_seed(0))
    image[..., :48] = 1.0
    image = image.clamp(0, 1)
    assert float(gaussian_sigma(image)) == pytest.approx(0.1, rel=0.1)
    assert float(gaussian_sigma(torch.full((1, 1, 96, 96), 0.3))) == 0
    assert float(gaussian_sigma(torch.rand(1, 1, 5, 5))) == 0  # no window to measure in
    holes = torch.zeros(1, 1, 96, 96)
    assert float(sensor_strength(holes, holes)) == 0


# ── as a model is told ──


def _x(size: int = 16) -> NoisyObservation:
    generator = torch.Generator().manual_seed(0)
    image = 0.5 + 0.1 * torch.randn(2, 1, size, size, generator=generator, dtype=torch.float64)
    seen = (torch.rand(image.shape, generator=generator) > 0.1).double()
    return NoisyObservation(image * seen, seen, torch.tensor([0.02, 0.1], dtype=torch.float64).view(-1, 1, 1, 1))


@pytest.mark.parametrize("name", ["depth", "photo"])
def test_the_written_gradient_of_a_told_energy_is_that_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    recipe = find_recipe(name).with_options(width=4, blocks=1, scales=2, gradient="written")
    model = build(recipe, find_regime("rooms-any"))[0].double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    x, y = _x(), _x().image + 0.05
    formula = model.energy.formula(x)  # type: ignore[operator]
    assert formula is not None
    slope, energies = formula(y)
    point = y.clone().requires_grad_()
    expected = model.energy(point, x)
    torch.testing.assert_close(energies, expected)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), point)[0])
    truth = Target(x.image, x.seen)
    found = []
    for strategy in (Exact(), Written()):
        model.minimizer.gradient = strategy
        loss = EndToEnd(masked_squared_error)(model, x, truth)
        found.append(torch.autograd.grad(loss, list(model.energy.parameters()), allow_unused=True))
    for exact, written in zip(*found, strict=True):
        torch.testing.assert_close(written, exact)


def test_features_hold_what_was_said_or_an_estimate() -> None:
    x = _x(32)
    told = WithNoise("gaussian")
    assert told(x) is x
    plain = Observation(x.image, torch.ones_like(x.image))
    assert torch.equal(told(plain).noise, noise_estimate(plain, "gaussian"))
    model, _ = build(find_recipe("denoise").with_options(width=4), find_regime("dead-leaves"))
    with pytest.raises(ValueError, match=r"this model reads the noise level: features are \(image, seen, noise\)"):
        model.energy(plain.image.float(), plain)


def test_a_told_model_changes_more_where_it_is_told_more() -> None:
    torch.manual_seed(0)
    model, _ = build(find_recipe("denoise").with_options(width=4, gradient="exact"), find_regime("dead-leaves"))

    def change(noise: float) -> Tensor:
        x = Observation(*(part.float() for part in _x()[:2]))
        said = NoisyObservation(*x, torch.full((2, 1, 1, 1), noise))
        with torch.no_grad():
            return (model(said).outputs[-1] - model.init(said)).abs().mean()

    assert float(change(0.1)) > 0
    assert not math.isclose(float(change(0.1)), float(change(0.01)), rel_tol=1e-3)


def test_readings_of_another_surface_have_no_loss_unless_noise_is_strong() -> None:
    frame = Rooms("train", 1).frame(0)
    stacked = torch.stack([part.float() for part in frame])[:, None].expand(-1, 2, -1, -1, -1)
    strengths = torch.tensor([1.0, 12.0])
    reading, seen, truth, scored, surface, _ = read_again(stacked, strengths, torch.Generator().manual_seed(0))
    off = PEAK_M * (reading - truth).abs()
    known = (seen > 0) & (truth > 0)
    assert float(off[0][known[0]].max()) > 0.5  # jitter at an edge
    assert torch.equal(scored[0] > 0, known[0] & (off[0] < OUTLIER_M))
    assert torch.equal(scored[1] > 0, known[1])
    assert bool((surface <= scored).all())
