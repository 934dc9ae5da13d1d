"""PSNR = 20·log10(1 / RMSE), per frame over the scored pixels, then the mean over frames.

Scored: there is a reading and its truth is known. Surface: scored and away from depth edges and missing readings, so
that flying pixels do not dominate. Holes: truth is known, but there is no reading.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.holes import fill_nearest
from spen.tasks.denoising.images import DEPTH_PEAK_MM

EDGE_MM = 40.0
"""A 3×3 window of truth that spans more than this holds a depth discontinuity."""

EDGE_DISTANCE = 2
"""Surface pixels are more than this many pixels away from a discontinuity."""


def masked_mse(
    prediction: Tensor,  # (B, 1, H, W) or (1, H, W)
    truth: Tensor,  # the same
    mask: Tensor,  # the same, bool
) -> Tensor:  # (B,) or ()
    """Σ_mask (y − y*)² / |mask| per frame, NaN for a frame whose mask is empty.

    A prediction that is NaN counts as infinitely wrong, not as a frame without pixels.
    """
    if not prediction.shape == truth.shape == mask.shape:
        raise ValueError(
            f"prediction {tuple(prediction.shape)}, truth {tuple(truth.shape)} and mask {tuple(mask.shape)} "
            "must have one shape"
        )
    # Double precision: at 50 dB the squared errors are 1e-5 of the squared values, summed over 1e5 pixels. Unscored
    # pixels are replaced, not multiplied by 0, so that a NaN there does not reach the sum.
    error = torch.where(mask, prediction.double() - truth.double(), 0.0).nan_to_num(nan=torch.inf)
    axes = (-3, -2, -1)
    return error.square().sum(axes) / mask.sum(axes)


def psnr(
    prediction: Tensor,  # (B, 1, H, W) or (1, H, W), in units of the peak
    truth: Tensor,
    scored: Tensor,  # bool
) -> Tensor:  # (B,) or ()
    """−20·log10(RMSE) per frame over its scored pixels; surface PSNR is this with the surface mask."""
    return -10.0 * torch.log10(masked_mse(prediction, truth, scored))


def clamped_psnr(prediction: Tensor, truth: Tensor) -> Tensor:  # (1, H, W), (1, H, W) -> ()
    """The PSNR of the authors' public code: of the prediction clamped to [0, 1], over every pixel, holes included.

    The peak is the largest truth of the frame.
    """
    every = torch.ones_like(truth, dtype=torch.bool)
    return psnr(prediction.clamp(0, 1), truth, every) + 20 * truth.max().double().log10()


def hole_rmse_mm(
    prediction: Tensor,  # (B, 1, H, W) or (1, H, W), depth / 4000 mm
    truth: Tensor,
    hole: Tensor,  # bool
) -> Tensor:  # (B,) or ()
    """RMSE in millimetres over the pixels that the sensor missed and whose truth is known."""
    return DEPTH_PEAK_MM * masked_mse(prediction, truth, hole).sqrt()


def mean_over_frames(values: Tensor) -> float:  # (frames,)
    """The mean over the frames that have a value: a frame without holes has no hole error."""
    counted = values[~values.isnan()]
    if counted.numel() == 0:
        raise ValueError(f"none of the {values.numel()} frames has a pixel to score")
    return float(counted.mean())


def surface_mask(
    truth_mm: NDArray[np.floating],  # (H, W), 0 = no truth
    seen: NDArray[np.bool_],  # (H, W), the sensor gave a reading
) -> NDArray[np.bool_]:  # (H, W)
    """Scored pixels more than 2 px from a depth discontinuity and not next to a missing reading.

    Pixels without truth take the nearest truth first, so that a gap within a surface is no edge and a gap between two
    surfaces is one.
    """
    from scipy import ndimage  # slow to import, and not needed to predict

    known = truth_mm > 0
    if not known.any():
        return np.zeros_like(known)
    filled = fill_nearest(truth_mm, known)
    # Truth comes in half millimetres, often as float32 metres: the margin keeps a span of exactly 40 mm no edge.
    edge = ndimage.maximum_filter(filled, 3) - ndimage.minimum_filter(filled, 3) > EDGE_MM + 0.01
    near_edge = ndimage.binary_dilation(edge, iterations=EDGE_DISTANCE)
    return known & seen & ~near_edge & ~ndimage.binary_dilation(~seen)
