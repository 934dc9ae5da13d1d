"""Filling by hand and by value."""

import numpy as np
import pytest
import torch

from spen.tasks.denoising.holes import fill_nearest, fill_pyramid, fill_smooth


def test_nearest_takes_the_nearest_reading_and_leaves_readings_alone() -> None:
    noisy = np.array([[1, 0, 0, 0, 5]], np.float32)
    valid = np.array([[True, False, False, False, True]])
    assert fill_nearest(noisy, valid).tolist() in ([[1, 1, 1, 5, 5]], [[1, 1, 5, 5, 5]])
    whole = np.ones_like(valid)
    assert fill_nearest(noisy, whole) is noisy
    assert fill_smooth(noisy, whole) is noisy


def test_smooth_fill_tends_to_the_straight_line_between_the_rims() -> None:
    ramp = np.tile(np.arange(9, dtype=np.float32), (5, 1))
    valid = np.ones_like(ramp, dtype=bool)
    valid[:, 2:7] = False
    filled = fill_smooth(np.where(valid, ramp, 0).astype(np.float32), valid, sweeps=200)
    assert np.abs(filled - ramp).max() < 1e-4
    assert np.abs(fill_smooth(ramp, valid, sweeps=0) - ramp).max() >= 2
    assert filled.dtype == np.float32


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 7), (16, 16), (13, 30)])
def test_pyramid_keeps_readings_and_fills_a_constant_exactly(size: tuple[int, int]) -> None:
    seen = (torch.rand(3, 1, *size) > 0.7).double()
    seen[..., 0, 0] = 1
    image = torch.rand(3, 1, *size, dtype=torch.double)
    filled = fill_pyramid(image * seen, seen)
    assert filled.shape == image.shape
    assert torch.equal(filled[seen > 0], image[seen > 0])
    assert (filled.amax((1, 2, 3)) <= (image * seen).amax((1, 2, 3)) + 1e-12).all(), "a mean of readings stays within"
    level = torch.tensor([0.2, 0.5, 3.0], dtype=torch.double).view(3, 1, 1, 1)
    assert torch.allclose(fill_pyramid(level * seen, seen), level.expand(3, 1, *size))


def test_pyramid_ignores_what_stands_in_a_hole_and_is_differentiable() -> None:
    seen = (torch.rand(2, 1, 4, 5) > 0.5).double()
    image = torch.rand(2, 1, 4, 5, dtype=torch.double, requires_grad=True)
    assert torch.equal(fill_pyramid(image, seen), fill_pyramid(image + 7 * (1 - seen), seen))
    torch.autograd.gradcheck(lambda x: fill_pyramid(x, seen), (image,))
    alone = fill_pyramid(image[:1], seen[:1])
    assert torch.equal(alone, fill_pyramid(image, seen)[:1]), "examples do not meet"
    assert not fill_pyramid(image, torch.zeros_like(seen)).any()


def test_errors_say_what_came() -> None:
    noisy, valid = np.zeros((4, 5), np.float32), np.zeros((4, 5), bool)
    with pytest.raises(ValueError, match=r"noisy has shape \(4, 5\) and valid \(5,\), but both must be \(H, W\)"):
        fill_nearest(noisy, valid[0])
    with pytest.raises(ValueError, match="valid is float32 but must be bool"):
        fill_nearest(noisy, valid.astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no valid pixel"):
        fill_nearest(noisy, valid)
