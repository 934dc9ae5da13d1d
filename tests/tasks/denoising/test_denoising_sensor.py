"""Each effect of the sensor by itself, on geometry whose answer is known; the calibrated strengths at 30 dB."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spen.tasks.denoising.data import DepthPairs, Rooms
from spen.tasks.denoising.regimes import STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_ROOMS
from spen.tasks.denoising.sensor import Reading, Sensor
from spen.tasks.locations import find_data
from tests.helpers import docs_script

calibration = docs_script("sensor_strength")

# Nothing happens but what a test turns on.
STILL = Sensor(axial=0.0, quantum=0.0, lateral=0.0, grazing=1000.0)


def read(sensor: Sensor, depth: Tensor, seed: int = 0) -> Reading:
    return sensor(depth, torch.Generator().manual_seed(seed))


def wall(z: float, height: int = 60, width: int = 80) -> Tensor:
    return torch.full((height, width), z)


def step() -> Tensor:
    depth = wall(3.0)
    depth[:, 50:] = 1.0
    return depth


@pytest.mark.parametrize("shape", [(60, 80), (1, 60, 80), (3, 1, 60, 80), (1, 1)])
def test_without_effects_the_reading_is_exact(shape: tuple[int, ...]) -> None:
    depth = torch.full(shape, 2.0)
    reading = read(STILL, depth)
    assert reading.depth.shape == reading.valid.shape == depth.shape
    assert torch.allclose(reading.depth, depth)
    assert reading.valid.all()


def test_strength_zero_is_exact_but_for_missing_readings() -> None:
    depth = step()
    reading = read(Sensor(strength=0.0), depth)
    assert torch.allclose(reading.depth[reading.valid], depth[reading.valid])
    assert (reading.depth[~reading.valid] == 0).all()
    assert not reading.valid.all()


def test_the_same_generator_gives_the_same_reading_and_the_input_stays() -> None:
    depth = step()
    before = depth.clone()
    assert torch.equal(read(Sensor(), depth, 1).depth, read(Sensor(), depth, 1).depth)
    assert not torch.equal(read(Sensor(), depth, 1).depth, read(Sensor(), depth, 2).depth)
    assert torch.equal(depth, before)


def test_frames_of_a_batch_have_noise_of_their_own() -> None:
    reading = read(Sensor(), wall(2.0).expand(2, 1, 60, 80))
    assert not torch.equal(reading.depth[0], reading.depth[1])


def test_axial_noise_grows_with_the_square_of_depth() -> None:
    sensor = Sensor(axial=0.05, quantum=0.0, lateral=0.0)
    near, far = (read(sensor, wall(z, 240, 320)).depth.std().item() for z in (1.0, 2.0))
    assert far / near == pytest.approx(4.0, rel=0.03)
    assert near == pytest.approx(0.05 / (sensor.focal * sensor.baseline), rel=0.03)


def test_quantisation_steps_by_one_quantum_of_disparity() -> None:
    sensor = Sensor(axial=0.0, quantum=0.25, lateral=0.0, grazing=1000.0)
    ramp = torch.linspace(1.0, 3.0, 4000).expand(2, -1)
    steps = torch.unique(sensor.focal * sensor.baseline / read(sensor, ramp).depth)
    assert torch.allclose(steps.diff(), torch.tensor(0.25), atol=1e-3)
    double = torch.unique(read(replace(sensor, strength=2.0), ramp).depth)
    assert len(double) < 0.6 * len(steps)


def test_jitter_moves_edges_and_leaves_planes_alone() -> None:
    sensor = Sensor(axial=0.0, quantum=0.0, lateral=1.0)
    assert torch.allclose(read(sensor, wall(2.0)).depth, wall(2.0))
    moved = (read(sensor, step()).depth - step()).abs()[:, 40:60] > 0.01
    assert moved[:, 8:12].float().mean() > 0.2
    assert not moved[:, 15:].any()


def test_jitter_grows_with_the_root_of_strength() -> None:
    def spread(strength: float) -> float:
        ramp = 21.9375 / torch.linspace(8, 16, 320).expand(240, -1)  # disparity is linear in u: 40 pixels a unit
        sensor = Sensor(strength, axial=0.0, quantum=0.0, lateral=0.5, grazing=1000.0)
        got = sensor.focal * sensor.baseline / read(sensor, ramp).depth[:, 20:-20]
        return float((got - sensor.focal * sensor.baseline / ramp[:, 20:-20]).std()) * 319 / 8

    assert spread(1.0) == pytest.approx(0.5, rel=0.05)
    assert spread(4.0) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("baseline", "near_z"), [(0.075, 1.0), (0.15, 1.0), (0.075, 0.7)])
def test_shadows_fall_to_the_left_of_what_is_near(baseline: float, near_z: float) -> None:
    depth = wall(3.0, 20, 160)
    depth[:, 100:] = near_z
    sensor = Sensor(strength=0.0, grazing=1000.0, baseline=baseline)
    lost = ~read(sensor, depth).valid
    width = sensor.focal * baseline * (1 / near_z - 1 / 3.0)
    assert (lost.sum(dim=1) - width).abs().max() <= 2
    assert lost[:, 100 - int(width) + 2 : 98].all()
    assert not lost[:, 100:].any()


def test_light_passes_on_both_sides_of_a_thin_post() -> None:
    depth = wall(3.0, 20, 160)
    depth[:, 120:124] = 1.0
    lost = ~read(Sensor(strength=0.0, grazing=1000.0), depth).valid
    assert 3 <= int(lost[10].sum()) <= 6  # as wide as the post, and apart from it
    assert not lost[10, 112:].any()


def test_a_slanted_plane_casts_no_shadow_on_itself() -> None:
    u = torch.arange(160) - 80
    for slope in (-2.0, -0.7, 0.7, 2.0):
        plane = (2.0 / (1 - slope * u / 292.5)).expand(20, -1)
        assert read(Sensor(strength=0.0, grazing=1000.0, far=9.0), plane).valid.all()


def test_grazing_surfaces_are_lost() -> None:
    def lost(angle: float, limit: float = 80.0) -> float:
        # A plane through (0, 0, 2) that is `angle` away from facing the camera.
        v = (torch.arange(240) - 120)[:, None] / 292.5
        plane = (2.0 / (1 - math.tan(math.radians(angle)) * v)).expand(-1, 320).clone()
        plane[plane < 0] = 0
        strip = plane[115:126, 155:166]  # near the centre, where the ray is the optical axis
        full = read(Sensor(strength=0.0, grazing=limit, near=0.01, far=99.0), plane).valid[115:126, 155:166]
        assert (strip > 0).all()
        return 1 - full.float().mean().item()

    assert lost(60.0) < 0.01
    assert lost(86.0) > 0.85
    assert lost(60.0, limit=50.0) > 0.95


def test_an_edge_is_no_grazing_surface() -> None:
    depth = wall(3.0)
    depth[30:] = 1.0
    assert read(Sensor(strength=0.0), depth).valid.all()


def test_out_of_range_and_unknown_pixels_are_missing() -> None:
    depth = torch.tensor([[0.0, 0.4, 0.6, 3.9, 4.1]]).repeat_interleave(40, dim=1).repeat(20, 1)
    valid = read(Sensor(strength=0.0, grazing=1000.0, baseline=1e-6), depth).valid[10, 20::40]
    assert valid.tolist() == [False, False, True, True, False]
    wide = Sensor(strength=0.0, grazing=1000.0, baseline=1e-6, near=0.3, far=5.0)
    assert read(wide, depth).valid[10, 20::40].tolist() == [False, True, True, True, True]


def test_noise_never_leaves_the_range() -> None:
    depth = read(Sensor(strength=40.0), wall(3.9)).depth
    assert depth[depth > 0].min() >= 0.5 - 1e-5
    assert depth.max() <= 4.0 + 1e-5


def test_focal_length_scales_the_noise() -> None:
    def noise(focal: float) -> float:
        return float(read(Sensor(focal=focal, quantum=0.0, lateral=0.0), wall(2.0)).depth.std())

    assert noise(292.5) / noise(585.0) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strength": -1.0}, "strength is -1.0 but must not be negative"),
        ({"quantum": -0.1}, "quantum is -0.1 but must not be negative"),
        ({"near": 4.0}, "near is 4.0 m and far 4.0 m; the range must satisfy 0 < near < far"),
        ({"baseline": 0.0}, "focal 292.5 and baseline 0.0 must be positive"),
    ],
)
def test_wrong_options(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Sensor(**options)


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"depth has shape \(3, 4, 4\) but \(H, W\), \(1, H, W\) or"):
        read(Sensor(), torch.ones(3, 4, 4))


def test_calibration_finds_the_strength() -> None:
    assert calibration.calibrate(lambda s: 50 - 20 * math.log10(s)) == pytest.approx(10.0, rel=1e-3)
    assert calibration.calibrate(lambda s: 50 - 20 * math.log10(s), target=44.0, bracket=(1.0, 4.0)) == pytest.approx(
        2, rel=0.01
    )
    with pytest.raises(ValueError, match=r"30.0 dB is not reached between strengths 0.25 and 64.0"):
        calibration.calibrate(lambda s: 20.0)


def test_rooms_are_read_near_30_db() -> None:
    rooms = Rooms("dev", 32)
    truths = [rooms.truth(i) for i in range(0, 32, 2)]
    assert calibration.strength_for(truths) == pytest.approx(STRENGTH_30DB_ROOMS, rel=0.1)
    assert calibration.strength_for(truths[:2], target=36.0) < 0.7 * STRENGTH_30DB_ROOMS
    # A median takes most of the noise away, so that it needs more of it to end at 30 dB.
    assert calibration.strength_for(truths[:2], process=calibration.elementary) > 1.2 * STRENGTH_30DB_ROOMS


def test_redkitchen_is_read_near_30_db() -> None:
    try:
        pairs = DepthPairs(find_data("denoising/redkitchen"), "dev", every=6)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    truths = [pairs.truth(i) for i in range(len(pairs))]
    assert calibration.strength_for(truths) == pytest.approx(STRENGTH_30DB_REDKITCHEN, rel=0.1)


def disparity_errors(sensor: Sensor, maps: int = 40) -> torch.Tensor:
    """Of a wall that faces the sensor two metres away, (maps, H, W)."""
    fb, wall = sensor.focal * sensor.baseline, torch.full((maps, 1, 60, 80), 2.0)
    reading = sensor(wall, torch.Generator().manual_seed(0))
    return (fb / reading.depth - fb / 2)[:, 0]


def test_noise_is_correlated_between_neighbours_if_asked_for() -> None:
    def correlation(errors: torch.Tensor, lag: int) -> float:
        return float((errors[..., :-lag] * errors[..., lag:]).mean() / errors.square().mean())

    white, smooth = (disparity_errors(Sensor(correlated=correlated, quantum=0.0)) for correlated in (False, True))
    assert abs(correlation(white, 1)) < 0.02
    # Variances a²/9, a² e^(−d²/4·1.5²) and a² e^(−d²/4·6²) at the lag d.
    for lag in (1, 3, 8):
        expected = sum(math.exp(-(lag**2) / (4 * width**2)) for width in (1.5, 6.0)) / (2 + 1 / 9)
        assert correlation(smooth, lag) == pytest.approx(expected, abs=0.05)
    assert float(smooth.std()) == pytest.approx(Sensor().axial * math.sqrt(2 + 1 / 9), rel=0.05)
    wall = torch.full((4, 1, 60, 80), 2.0)
    mixed = Sensor(quantum=0.0)(
        wall, torch.Generator().manual_seed(0), correlated=torch.tensor([True, False, True, False])
    )
    spread = (Sensor().focal * Sensor().baseline / mixed.depth).flatten(1).std(1) / Sensor().axial
    assert torch.allclose(spread, torch.tensor([1.45, 1.0, 1.45, 1.0]), atol=0.2)
