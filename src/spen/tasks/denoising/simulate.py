"""y + n: noise of a known level added to images, and the standard deviation that a noise-conditioned model reads.

Images are C×H×W, C one or three planes (``images.OPPONENT``), depth in units of 4 m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spen.tasks.denoising.images import OPPONENT, PEAK_M
from spen.tasks.denoising.noise import Noise
from spen.tasks.denoising.sensor import Sensor

CORRELATED = 0.53
"""What an estimate by high frequencies reads of correlated noise, as a share of its strength: 0.50 to 0.57 on the rooms
at strengths of 15 to 0.5. A model is trained with the noise level that will be estimated."""

SENSOR_UNIT = 1 / 306
"""The noise of a sensor of strength 1, edges included, in units of 4 m: 30 dB is strength 12.24 on the rooms, of which
the U-Net of spen-best saw 25 times as much, 0.8."""


OUTLIER_M = 0.05
"""A reading of strength 1 that is off by more comes from another surface. Such pixels have no loss in training, as they
have no truth in RedKitchen. The limit grows with the square of the strength, so that it is none for strong noise."""


def draw_levels(noise: Noise, count: int, generator: torch.Generator) -> Tensor:  # (count,)
    """Levels from the range, a sensor's log-uniformly, others uniformly; a fixed level draws nothing."""
    if noise.fixed:
        return torch.full((count,), noise.low, device=generator.device)
    drawn = torch.rand(count, generator=generator, device=generator.device)
    if noise.kind == "depth-sensor" and noise.low > 0:
        return noise.low * (noise.high / noise.low) ** drawn
    return noise.low + (noise.high - noise.low) * drawn


def draw_correlated(noise: Noise, count: int, generator: torch.Generator) -> Tensor | None:  # (count,) bool
    """Which readings of a sensor get correlated noise; None for none of them, and nothing is drawn."""
    if not noise.correlated:
        return None
    return torch.rand(count, generator=generator, device=generator.device) < noise.correlated


def noisy(noise: Noise, truth: Tensor, levels: Tensor, generator: torch.Generator) -> Tensor:  # (B, C, H, W), (B,)
    """The images with Gaussian or with photon noise; not clipped."""
    level = levels.view(-1, 1, 1, 1)
    if noise.kind == "gaussian":
        return truth + level / 255 * torch.randn(truth.shape, generator=generator, device=truth.device)
    colours = _transformed(truth, OPPONENT.T) if truth.shape[1] == 3 else truth
    counted = torch.poisson(level * colours.clamp_min(0), generator=generator) / level
    return _transformed(counted, OPPONENT) if truth.shape[1] == 3 else counted


def deviations(
    noise: Noise,
    levels: Tensor,  # (B,)
    truth: Tensor,  # (B, C, H, W)
    correlated: Tensor | None = None,  # (B,) bool
) -> Tensor:  # (B,)
    """The standard deviation of the noise in units of the image; that of photons for the mean of the image."""
    if noise.kind == "gaussian":
        return levels / 255
    if noise.kind == "depth-sensor":
        return SENSOR_UNIT * (levels if correlated is None else torch.where(correlated, CORRELATED * levels, levels))
    bright = truth[:, 0].mean((1, 2)) / truth.shape[1] ** 0.5
    return (bright.clamp_min(0) / levels).sqrt()


def read_again(
    frames: Tensor,  # (6, count, 1, H, W), as `Crops` stacks them
    strengths: Tensor,  # (count,)
    generator: torch.Generator,
    correlated: Tensor | None = None,  # (count,) bool
) -> Tensor:
    """New sensor readings of the same depth maps; a surface pixel stays one where it has a reading.

    Outliers (``OUTLIER_M``) are not scored.
    """
    truth, surface, known = frames[2], frames[4], frames[2] > 0
    depth, seen = Sensor()(PEAK_M * truth, generator, strengths, correlated)
    limit = OUTLIER_M * strengths.square().clamp_min(1).view(-1, 1, 1, 1)
    scored = seen & known & ((depth - PEAK_M * truth).abs() < limit)
    parts = (depth / PEAK_M, seen, truth, scored, scored & (surface > 0), ~seen & known)
    return torch.stack([part.float() for part in parts])


def _transformed(planes: Tensor, matrix: object) -> Tensor:
    return torch.einsum("kc,bchw->bkhw", torch.as_tensor(matrix, dtype=planes.dtype, device=planes.device), planes)
