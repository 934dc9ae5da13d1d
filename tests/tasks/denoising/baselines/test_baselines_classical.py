"""Total variation and BM3D improve a noisy image, mind its holes, and are tuned by PSNR."""

import math
import sys
from dataclasses import astuple, dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spen.tasks.denoising.baselines.classical import (
    BM3D,
    CANDIDATES,
    Denoiser,
    TotalVariation,
    mean_psnr,
    tune,
)
from spen.tasks.denoising.data import Frame, Rooms


def steps_frame(sigma: float = 0.05, seed: int = 0, holes: bool = False) -> Frame:
    """Two walls and a box with Gaussian noise; with holes, a fifth of the readings are missing."""
    rng = np.random.default_rng(seed)
    truth = np.full((48, 64), 0.4, np.float32)
    truth[:, 30:] = 0.8
    truth[10:25, 10:40] = 0.6
    valid = rng.random(truth.shape) > 0.2 if holes else np.ones(truth.shape, bool)
    noisy = np.where(valid, truth + sigma * rng.standard_normal(truth.shape), 0).astype(np.float32)
    parts = (noisy, valid, truth, valid, valid, ~valid)
    return Frame(*(torch.from_numpy(part)[None] for part in parts))


@dataclass(frozen=True)
class Shifted:
    """A denoiser that is wrong by ``by`` everywhere: its PSNR is −20·log10(by)."""

    by: float

    def denoise(self, noisy: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        return noisy + np.float32(self.by)


# BM3D takes seconds even on a small image, so it meets the harder case alone.
@pytest.mark.parametrize(
    ("method", "holes"), [(TotalVariation(0.08), False), (TotalVariation(0.08), True), (BM3D(0.05), True)]
)
def test_classical_filters_gain_decibels_in_spite_of_holes(method: Denoiser, holes: bool) -> None:
    if isinstance(method, BM3D):
        pytest.importorskip(
            "bm3d", reason="the package bm3d, for non-commercial use, is not installed; `make test BM3D=1` installs it"
        )
    frame = steps_frame(holes=holes)
    noisy, valid = frame.noisy[0].numpy(), frame.valid[0].numpy()
    answer = method.denoise(noisy, valid)
    assert answer.shape == noisy.shape
    assert answer.dtype == np.float32
    assert mean_psnr(method, [frame]) > mean_psnr(Shifted(0.0), [frame]) + 6
    if holes:
        error = np.abs(answer - frame.truth[0].numpy())[~valid]
        assert np.sqrt((error**2).mean()) < 0.06, "a hole left at zero would be wrong by 0.4 and more"


def test_total_variation_minimises_its_objective() -> None:
    """Far from the default stop, no small random change of the answer lowers ½‖y − x‖² + w·TV by much."""
    frame = steps_frame()
    x, w = frame.noisy[0].double().numpy(), 0.08

    def objective(y: NDArray[np.float64]) -> float:
        gy, gx = np.diff(y, axis=0, append=y[-1:]), np.diff(y, axis=1, append=y[:, -1:])
        return float(0.5 * ((y - x) ** 2).sum() + w * np.sqrt(gx**2 + gy**2).sum())

    values = {s: objective(TotalVariation(s).denoise(frame.noisy[0].numpy(), frame.valid[0].numpy()).astype(float))
              for s in (w / 4, w, 4 * w)}  # fmt: skip
    assert values[w] == min(values.values()), "of three weights, the objective's own comes nearest to its minimum"
    assert values[w] < 0.5 * objective(x)


def test_tune_picks_the_best_by_mean_psnr_over_frames() -> None:
    frames = [steps_frame(0.0, seed) for seed in range(2)]
    best, scores = tune(frames, [Shifted(0.1), Shifted(0.001), Shifted(0.01)])
    assert best == Shifted(0.001)
    assert [round(score, 2) for score in scores] == [20.0, 60.0, 40.0]
    with pytest.raises(ValueError, match="tuning needs frames and candidates, not 0 and 1"):
        tune([], [Shifted(1.0)])


def test_tuning_finds_an_inner_weight_on_the_rooms() -> None:
    frames = [Rooms("dev", 1).frame(0)]
    candidates = CANDIDATES["tv", False]
    best, scores = tune(frames, candidates)
    assert best not in (candidates[0], candidates[-1])
    assert max(scores) > mean_psnr(Shifted(0.0), frames) + 3


def test_surface_pixels_are_scored_apart() -> None:
    frame = steps_frame(0.0)
    half = frame._replace(surface=torch.zeros_like(frame.surface), noisy=frame.noisy.clone())
    half.surface[..., :10] = True
    half.noisy[..., 10:] += 0.5
    assert mean_psnr(Shifted(0.01), [half], surface=True) == pytest.approx(40, abs=0.01)
    assert mean_psnr(Shifted(0.01), [half]) < 10


def test_candidates_rise() -> None:
    for candidates in CANDIDATES.values():
        numbers = [astuple(candidate)[0] for candidate in candidates]
        assert numbers == sorted(set(numbers))


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the weight of total variation must be positive and finite, not 0"):
        TotalVariation(0.0)
    with pytest.raises(ValueError, match="the noise of BM3D must be positive and finite, not inf"):
        BM3D(math.inf)
    monkeypatch.setitem(sys.modules, "bm3d", None)
    with pytest.raises(ModuleNotFoundError, match="^BM3D needs .* not installed; run `pip install bm3d`$"):
        BM3D().denoise(np.ones((16, 16), np.float32), np.ones((16, 16), bool))
