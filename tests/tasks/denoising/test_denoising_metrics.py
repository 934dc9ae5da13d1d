"""PSNR by value, masks by hand, and the reference figures of the prepared RedKitchen frames."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spen.tasks.denoising.data import DepthPairs, Frame
from spen.tasks.denoising.losses import Target
from spen.tasks.denoising.metrics import (
    clamped_psnr,
    hole_rmse_mm,
    masked_mse,
    mean_over_frames,
    psnr,
    surface_mask,
)
from spen.tasks.denoising.sources import PSNR
from spen.tasks.locations import find_data


@settings(deadline=None)
@given(st.floats(1e-4, 0.5))
def test_psnr_of_a_constant_error(error: float) -> None:
    truth = torch.full((2, 1, 4, 5), 0.3, dtype=torch.float64)
    value = psnr(truth + error, truth, torch.ones_like(truth, dtype=torch.bool))
    assert value.shape == (2,)
    assert torch.allclose(value, torch.full((2,), -20 * math.log10(error), dtype=torch.float64))


def test_only_masked_pixels_count_and_frames_are_apart() -> None:
    truth = torch.zeros(2, 1, 1, 3)
    guess = torch.tensor([[[[0.1, 9.0, math.nan]]], [[[0.2, 0.4, 9.0]]]])
    mask = torch.tensor([[[[True, False, False]]], [[[True, True, False]]]])
    assert masked_mse(guess, truth, mask).tolist() == pytest.approx([0.01, 0.1])
    assert masked_mse(guess[0], truth[0], mask[0]).item() == pytest.approx(0.01)
    assert hole_rmse_mm(guess, truth, mask).tolist() == pytest.approx([400.0, 4000 * math.sqrt(0.1)])


def test_a_frame_without_pixels_has_no_value() -> None:
    values = masked_mse(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.bool))
    assert values.isnan().all()
    assert mean_over_frames(torch.tensor([math.nan, 2.0, 4.0])) == 3.0
    with pytest.raises(ValueError, match="none of the 1 frames has a pixel to score"):
        mean_over_frames(values)


def test_an_answer_that_is_no_number_is_not_left_out() -> None:
    truth, scored = torch.zeros(2, 1, 1, 2), torch.ones(2, 1, 1, 2)
    guess = torch.full_like(truth, 0.1)
    metric = PSNR()
    metric.update(guess, Target(truth, scored))
    assert metric.compute().item() == pytest.approx(20)
    guess[1, 0, 0, 0] = math.nan
    values = psnr(guess, truth, scored > 0)
    assert values.tolist() == [pytest.approx(20), -math.inf]
    assert mean_over_frames(values) == -math.inf
    assert mean_over_frames(hole_rmse_mm(guess, truth, scored > 0)) == math.inf
    metric.update(guess, Target(truth, scored))
    assert metric.compute().isnan()


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"prediction \(1, 2, 2\), truth \(1, 2, 3\) and mask \(1, 2, 2\) must have"):
        masked_mse(torch.zeros(1, 2, 2), torch.zeros(1, 2, 3), torch.zeros(1, 2, 2, dtype=torch.bool))


def test_surface_keeps_away_from_edges_and_missing_readings() -> None:
    truth = np.full((9, 20), 1000.0)
    truth[:, 10:] = 1041.0  # the edge lies between columns 9 and 10: windows centred on both span it
    seen = np.ones_like(truth, dtype=bool)
    seen[4, 2] = False
    surface = surface_mask(truth, seen)
    row = surface[0]
    assert row[:7].all()
    assert not row[7:13].any()
    assert row[13:].all()
    assert not surface[4, 1:4].any()
    assert not surface[3, 2]
    assert not surface[5, 2]
    assert surface[3, 1]


def test_a_step_of_exactly_the_limit_is_a_surface() -> None:
    truth = np.full((3, 8), 1000.0)
    truth[:, 4:] = 1040.0
    assert surface_mask(truth, np.ones_like(truth, dtype=bool)).all()


def test_gaps_in_truth() -> None:
    within = np.full((5, 11), 1000.0)
    within[:, 5] = 0
    seen = np.ones_like(within, dtype=bool)
    assert surface_mask(within, seen).sum() == 50  # a gap within a surface is no edge
    between = within.copy()
    between[:, 6:] = 2000.0
    assert surface_mask(between, seen).sum() < 40  # a gap between two surfaces is one
    assert not surface_mask(np.zeros((3, 3)), np.ones((3, 3), dtype=bool)).any()


def test_reference_figures_of_redkitchen() -> None:
    try:
        folder = find_data("denoising/redkitchen")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    frames = DepthPairs(folder, "test")
    parts = zip(*(frames.frame(index) for index in range(len(frames))), strict=True)
    whole = Frame(*(torch.stack(part) for part in parts))
    values = psnr(whole.noisy, whole.truth, whole.scored)
    assert mean_over_frames(values) == pytest.approx(51.61, abs=0.005)
    assert mean_over_frames(values[::10]) == pytest.approx(51.68, abs=0.005)
    surface = psnr(whole.noisy, whole.truth, whole.surface)
    assert mean_over_frames(surface[::10]) == pytest.approx(52.88, abs=0.005)
    assert float(whole.surface[::10].sum() / whole.scored[::10].sum()) == pytest.approx(0.87, abs=0.005)


def test_the_psnr_of_the_authors_counts_every_pixel_and_clamps() -> None:
    truth = torch.tensor([[[0.5, 0.25, 0.0, 0.0]]])
    wrong = torch.tensor([[[0.5, 0.25, 0.2, -3.0]]])  # below 0 is clamped to the truth
    assert float(clamped_psnr(wrong, truth)) == pytest.approx(20 * math.log10(0.5 / math.sqrt(0.04 / 4)))
