"""What a tree may ask about the patch around a pixel: its spread, its slopes, its centre, its depth, its holes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from spen.tasks.denoising.holes import Image, Mask

WINDOWS = (3, 7, 15)

PROBES = 8 * len(WINDOWS) + 4
"""How many numbers describe a patch."""


def probe_maps(filled: Image, valid: Mask) -> NDArray[np.float32]:  # (H, W), (H, W) -> (PROBES, H, W)
    """Every probe at every pixel, from a handful of box filters."""
    image = filled.astype(np.float64)
    image -= image.mean()  # a spread is a small difference of large squares
    seen = valid.astype(np.float64)
    maps: list[NDArray[np.floating]] = []
    for window in WINDOWS:
        mean = ndimage.uniform_filter(image, window)
        variance = ndimage.uniform_filter(image * image, window) - mean * mean
        reach = (window + 1) // 2
        across, down = _sides(mean, reach, 1), _sides(mean, reach, 0)
        maps += [
            np.sqrt(np.maximum(variance, 0.0)),
            image - mean,
            across[1] - across[0],
            down[1] - down[0],
            across[0] + across[1] - 2 * mean,
            down[0] + down[1] - 2 * mean,
            ndimage.maximum_filter(image, window) - image,
            image - ndimage.minimum_filter(image, window),
        ]
    around = ndimage.uniform_filter(seen, 7)
    left, right = _sides(around, 4, 1)
    # A sensor's shadows lie on one side of what casts them, so the side of a hole tells edge from edge.
    maps += [ndimage.uniform_filter(filled, 7), ndimage.uniform_filter(seen, 3), around, right - left]
    return np.stack(maps).astype(np.float32)


def _sides(
    values: NDArray[np.float64], reach: int, axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # values at −reach and at +reach
    padding = [(reach, reach) if a == axis else (0, 0) for a in range(2)]
    padded = np.pad(values, padding, mode="edge")
    length = values.shape[axis]
    before = padded.take(range(length), axis)
    after = padded.take(range(2 * reach, 2 * reach + length), axis)
    return before, after
