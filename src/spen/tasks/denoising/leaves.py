"""Dead leaves: disks of random sizes, colours and textures that cover each other, as surfaces in a photograph do.

The radii r have a density ∝ r⁻³, which makes the statistics of the image the same at every scale, as those of natural
images are. Every image is a pure function of (seed, index).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.images import OPPONENT

SIZE = (192, 192)
LEAVES = 1500
RADII = (2.0, 120.0)
SUPERSAMPLED = 2  # each pixel is the mean of so many squared, so that edges are as soft as those of a lens


class Leaves:
    """Images without noise; needs no download."""

    def __init__(self, count: int, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"count is {count} but there must be at least one image")
        self.seed = seed
        self.names = [f"leaves-{seed}-{index:06d}" for index in range(count)]

    def truth(self, index: int) -> Tensor:  # (3, H, W): brightness and two differences of colours
        colours = dead_leaves(np.random.default_rng([self.seed, index]))
        return torch.from_numpy(np.einsum("kc,hwc->khw", OPPONENT, colours).astype(np.float32))


def dead_leaves(rng: np.random.Generator) -> NDArray[np.float64]:  # (H, W, 3) in [0, 1]
    """One image: which leaf is seen at each pixel, then the colour and texture of that leaf."""
    height, width = (SUPERSAMPLED * n for n in SIZE)
    low, high = (SUPERSAMPLED * r for r in RADII)
    # The inverse of the distribution function of r⁻³ between its ends.
    radius = (low**-2 + rng.random(LEAVES) * (high**-2 - low**-2)) ** -0.5
    y, x = rng.uniform(-high / 4, height + high / 4, LEAVES), rng.uniform(-high / 4, width + high / 4, LEAVES)
    angle, long = rng.uniform(0, np.pi, LEAVES), rng.uniform(1, 3, LEAVES)
    seen = np.zeros((height, width), np.int64)  # leaf 0 lies behind all others
    for k in np.argsort(-radius * rng.uniform(0.3, 1, LEAVES)):  # roughly large ones first, so that small ones are seen
        _lay(seen, k, y[k], x[k], radius[k], angle[k], long[k])
    colour = np.clip(rng.uniform(0, 1, (LEAVES, 1)) + 0.15 * rng.standard_normal((LEAVES, 3)), 0, 1)
    grain = _textures(rng, (height, width))
    kind, amount = rng.integers(0, len(grain), LEAVES), rng.exponential(0.06, LEAVES) * (rng.random(LEAVES) < 0.6)
    shade = np.take_along_axis(grain, kind[seen][None], 0)[0] * amount[seen]
    image = np.clip(colour[seen] + shade[..., None], 0, 1)
    return image.reshape(SIZE[0], SUPERSAMPLED, SIZE[1], SUPERSAMPLED, 3).mean((1, 3))


def _lay(seen: NDArray[np.int64], leaf: int, y: float, x: float, radius: float, angle: float, long: float) -> None:
    """Put an ellipse of half axes ``radius`` and ``radius / long`` on top."""
    top, left = max(0, int(y - radius)), max(0, int(x - radius))
    window = seen[top : max(0, int(y + radius) + 2), left : max(0, int(x + radius) + 2)]
    v, u = np.arange(window.shape[0])[:, None] + top - y, np.arange(window.shape[1]) + left - x
    along, across = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
    window[along**2 + (long * across) ** 2 < radius**2] = leaf


def _textures(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float64]:  # (kinds, H, W), variance near 1
    """Noise with spectra f^-½, f⁻¹ and f⁻², and waves of four directions and wavelengths."""
    v, u = np.fft.fftfreq(size[0])[:, None], np.fft.rfftfreq(size[1])[None]
    frequency = np.hypot(v, u)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((3, *size)))
    clouds = np.fft.irfft2(spectrum * frequency ** -np.array([0.5, 1.0, 2.0])[:, None, None], size)
    clouds /= clouds.std((1, 2), keepdims=True)
    angle, period = rng.uniform(0, np.pi, (4, 1, 1)), np.exp(rng.uniform(np.log(5), np.log(30), (4, 1, 1)))
    y, x = np.arange(size[0])[:, None], np.arange(size[1])
    phase = 2 * np.pi / period * (x * np.cos(angle) + y * np.sin(angle)) + clouds[1]
    waves = np.sqrt(2) * np.sin(phase)
    return np.concatenate([clouds, waves])
