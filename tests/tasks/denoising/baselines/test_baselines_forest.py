"""Leaves against ridge regression in closed form; trees that find the split; files without pickle."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from spen.tasks.denoising.baselines.classical import mean_psnr
from spen.tasks.denoising.baselines.forest import FilterForest, ForestConfig, Moments, Tree
from spen.tasks.denoising.baselines.probes import PROBES, probe_maps
from spen.tasks.denoising.data import Frame, Rooms
from tests.tasks.denoising.baselines.test_baselines_classical import Shifted, steps_frame

SMALL = ForestConfig(trees=2, depth=3, size=5, least=100, tests=12, judged=2000, samples=6000)


def full_frame(noisy: np.ndarray, truth: np.ndarray) -> Frame:
    every = torch.ones(1, *truth.shape, dtype=torch.bool)
    n, t = (torch.from_numpy(a.astype(np.float32))[None] for a in (noisy, truth))
    return Frame(n, every, t, every, every, ~every)


def test_a_leaf_is_ridge_regression_with_a_penalty_from_its_data() -> None:
    rng = np.random.default_rng(0)
    patches = rng.standard_normal((500, 9)).astype(np.float32)
    patches[:, 4] = 1
    target = (patches @ rng.standard_normal(9) + 0.1 * rng.standard_normal(500)).astype(np.float32)
    weights, value = Moments.of(patches, target).solve(0.3)
    # The same as ordinary least squares on the data with one more row √(λγ_i)·e_i for each weight but the bias.
    gamma = ((patches.astype(np.float64) - target[:, None]) ** 2).sum(0)
    gamma[4] = 0
    rows = np.concatenate([patches.astype(np.float64), np.diag(np.sqrt(0.3 * gamma))])
    expected, residual, *_ = np.linalg.lstsq(rows, np.concatenate([target, np.zeros(9)]), rcond=None)
    assert np.allclose(weights, expected, atol=1e-5)
    assert value == pytest.approx(float(residual[0]), rel=1e-5)


def test_moments_of_two_halves_add_up() -> None:
    rng = np.random.default_rng(1)
    patches, target = rng.standard_normal((300, 9)).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    whole, part, other = (Moments.of(patches[s], target[s]) for s in (slice(None), slice(120), slice(120, None)))
    for left, right in zip(whole.less(part), other, strict=True):
        assert np.allclose(left, right, atol=1e-3)


def test_one_leaf_learns_the_wiener_filter_of_the_whole_image() -> None:
    """Depth 1 with no admissible split: the forest is one linear filter, and equals least squares over all pixels."""
    rng = np.random.default_rng(2)
    truth = np.cumsum(rng.standard_normal((60, 60)), 1) * 0.01 + 0.5
    noisy = truth + 0.02 * rng.standard_normal(truth.shape)
    config = replace(SMALL, trees=1, size=3, least=1800, samples=10_000, ridge=1e-9)
    forest = FilterForest.fit([full_frame(noisy, truth)], config)
    assert len(forest.trees[0].left) == 1
    padded = np.pad(noisy.astype(np.float32), 1, mode="symmetric")
    columns = np.stack([padded[i : i + 60, j : j + 60].ravel() for i in range(3) for j in range(3)], 1).astype(float)
    design = columns - columns[:, 4:5]
    design[:, 4] = 1
    filters, *_ = np.linalg.lstsq(design, truth.ravel() - columns[:, 4], rcond=None)
    assert np.allclose(forest.trees[0].filters[0], filters, atol=2e-3)
    answer = forest.denoise(noisy.astype(np.float32), np.ones(noisy.shape, bool))
    assert np.allclose(answer, (columns[:, 4] + design @ filters).reshape(60, 60), atol=1e-4)


def test_rows_reach_the_leaf_that_the_tests_name() -> None:
    """x₀ ≤ 1 → leaf 1; else x₂ ≤ −1 → leaf 3, else leaf 4."""
    ints = lambda *v: np.array(v, np.int32)  # noqa: E731
    thresholds = np.array([1, 0, -1, 0, 0], np.float32)
    tree = Tree(ints(0, 0, 2, 0, 0), thresholds, ints(1, 1, 3, 3, 4), ints(2, 1, 4, 3, 4), np.zeros((5, 9), np.float32))
    rows = np.array([[1, 0, 9], [2, 0, -1], [2, 0, 0], [0, 5, -5]], np.float32)
    assert tree.leaves(rows).tolist() == [1, 3, 4, 1]


def test_trees_beat_one_filter_and_gain_on_new_noise() -> None:
    train = [steps_frame(0.05, seed, holes=seed % 2 == 1) for seed in range(4)]
    new = [steps_frame(0.05, seed, holes=seed % 2 == 1) for seed in (10, 11)]
    forest = FilterForest.fit(train, SMALL, seed=3)
    stump = FilterForest.fit(train, replace(SMALL, least=10**4 // 2), seed=3)
    raw = mean_psnr(Shifted(0.0), new)
    assert mean_psnr(stump, new) > raw + 3
    assert mean_psnr(forest, new) > mean_psnr(stump, new) + 1.5


def test_absolute_depth_passes_through_a_filter() -> None:
    frame = steps_frame(0.05)
    forest = FilterForest.fit([frame], replace(SMALL, least=1500))
    noisy, valid = frame.noisy[0].numpy(), frame.valid[0].numpy()
    assert np.allclose(forest.denoise(noisy + 0.25, valid), forest.denoise(noisy, valid) + 0.25, atol=1e-5)


def test_the_data_dependent_penalty_spares_the_far_side_of_an_edge() -> None:
    """Where the right neighbour is unrelated to the truth, a larger λ takes its weight first."""
    rng = np.random.default_rng(4)
    truth = rng.standard_normal(4000)
    patches = (truth[:, None] + 0.5 * rng.standard_normal((4000, 9))).astype(np.float32)
    patches[:, 5] += 3 * rng.standard_normal(4000).astype(np.float32)
    centre = patches[:, 4].copy()
    patches -= centre[:, None]
    patches[:, 4] = 1
    weights, _ = Moments.of(patches, (truth - centre).astype(np.float32)).solve(0.1)
    assert abs(weights[5]) < 0.1 * abs(np.delete(weights, [4, 5])).min()


def test_the_same_seed_grows_the_same_forest_and_every_knob_turns(tmp_path: Path) -> None:
    rooms = Rooms("train", 2)
    frames = [Frame(*(part[:, 60:130, 60:160] for part in rooms.frame(index))) for index in range(2)]
    noisy, valid = frames[0].noisy[0].numpy(), frames[0].valid[0].numpy()
    once = FilterForest.fit(frames, SMALL, seed=1).denoise(noisy, valid)
    assert np.array_equal(once, FilterForest.fit(frames, SMALL, seed=1).denoise(noisy, valid))
    assert not np.array_equal(once, FilterForest.fit(frames, SMALL, seed=2).denoise(noisy, valid))
    turned = {"trees": 1, "depth": 2, "size": 3, "least": 700, "tests": 4, "judged": 500, "samples": 3000, "ridge": 0.5}
    for name, value in turned.items():
        other = FilterForest.fit(frames, replace(SMALL, **{name: value}), seed=1)  # type: ignore[arg-type]
        assert not np.array_equal(once, other.denoise(noisy, valid)), name


def test_a_saved_forest_answers_as_before(tmp_path: Path) -> None:
    frame = steps_frame(0.05, holes=True)
    forest = FilterForest.fit([frame], SMALL)
    forest.save(tmp_path / "forest.safetensors")
    again = FilterForest.load(tmp_path / "forest.safetensors")
    noisy, valid = frame.noisy[0].numpy(), frame.valid[0].numpy()
    assert again.config == forest.config
    assert np.array_equal(again.denoise(noisy, valid), forest.denoise(noisy, valid))


def test_probes_read_slopes_spread_and_holes() -> None:
    ramp = np.tile(0.01 * np.arange(40, dtype=np.float32), (30, 1))
    maps = probe_maps(ramp, np.ones_like(ramp, dtype=bool))
    assert maps.shape == (PROBES, 30, 40)
    inner = maps[:, 10:20, 12:28]
    assert np.allclose(inner[0], 0.01 * np.sqrt(2 / 3), atol=1e-6), "three values in a row, 0.01 apart"
    assert np.allclose(inner[2], 0.04, atol=1e-6), "two pixels to the right less two to the left"
    assert np.allclose(inner[[1, 3, 4, 5]], 0, atol=1e-6)
    assert np.allclose(inner[[6, 7]], 0.01, atol=1e-6)
    assert np.allclose(inner[-4], ramp[10:20, 12:28], atol=1e-6)
    assert np.allclose(inner[[-3, -2]], 1)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its size must be odd and at least 3, not 4"):
        ForestConfig(size=4)
    with pytest.raises(ValueError, match="trees of a forest must be at least 1, not 0"):
        ForestConfig(trees=0)
    with pytest.raises(ValueError, match="the ridge of a forest must be positive, not 0"):
        ForestConfig(ridge=0.0)
    with pytest.raises(ValueError, match="the frames have 3072 scored pixels, but a split needs 200000 at least"):
        FilterForest.fit([steps_frame()], ForestConfig(least=100_000))
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors: there is no such file"):
        FilterForest.load(tmp_path / "gone.safetensors")
    save_file({"a": np.zeros(3)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    for name in ("other", "text"):
        with pytest.raises(ValueError, match=rf"{name}\.safetensors: is not a filter forest"):
            FilterForest.load(tmp_path / f"{name}.safetensors")
