"""y + n: noise of a known level on images without noise, and the standard deviation that a model is told.

Images are C×H×W, C one or three planes (``images.OPPONENT``), depth in units of 4 m.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from spen.tasks.denoising.data import PEAK_M, Frame, depth_frame, generator_of, image_frame
from spen.tasks.denoising.images import OPPONENT
from spen.tasks.denoising.noise import Noise
from spen.tasks.denoising.sensor import Sensor

SENSOR_UNIT = 1 / 306
"""The noise of a sensor of strength 1, edges included, in units of 4 m: 30 dB is strength 12.24 on the rooms, of which
the U-Net of spen-best saw 25 times as much, 0.8."""


class Truths(Protocol):
    """Images without noise."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str: ...

    def truth(self, index: int) -> Tensor:  # (C, H, W); depth in metres, 0 where it is not known
        ...


class Simulated:
    """Images without noise, noise added: new noise in every epoch, and a level of its own for every image."""

    def __init__(self, truths: Truths, noise: Noise, seed: int = 0, purpose: int = 3) -> None:
        self.truths, self.noise, self.seed, self.purpose = truths, noise, seed, purpose

    def __len__(self) -> int:
        return len(self.truths)

    def name(self, index: int) -> str:
        return self.truths.name(index)

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.truths.truth(index)
        generator = generator_of(self.seed, self.purpose, epoch, index)
        level = draw_levels(self.noise, 1, generator)
        if self.noise.kind == "depth-sensor":
            return depth_frame(*Sensor(float(level))(truth, generator), truth)
        return image_frame(noisy(self.noise, truth[None], level, generator)[0], truth)


def draw_levels(noise: Noise, count: int, generator: torch.Generator) -> Tensor:  # (count,)
    """Levels drawn evenly from the range; a fixed level draws nothing."""
    if noise.fixed:
        return torch.full((count,), noise.low, device=generator.device)
    return noise.low + (noise.high - noise.low) * torch.rand(count, generator=generator, device=generator.device)


def noisy(noise: Noise, truth: Tensor, levels: Tensor, generator: torch.Generator) -> Tensor:  # (B, C, H, W), (B,)
    """The images with Gaussian noise, or as so many photons would show them; not clipped."""
    level = levels.view(-1, 1, 1, 1)
    if noise.kind == "gaussian":
        return truth + level / 255 * torch.randn(truth.shape, generator=generator, device=truth.device)
    colours = _turned(truth, OPPONENT.T) if truth.shape[1] == 3 else truth
    counted = torch.poisson(level * colours.clamp_min(0), generator=generator) / level
    return _turned(counted, OPPONENT) if truth.shape[1] == 3 else counted


def deviations(noise: Noise, levels: Tensor, truth: Tensor) -> Tensor:  # (B,), (B, C, H, W) -> (B,)
    """The standard deviation of the noise in units of the image; that of photons for the mean of the image."""
    if noise.kind == "gaussian":
        return levels / 255
    if noise.kind == "depth-sensor":
        return levels * SENSOR_UNIT
    bright = truth[:, 0].mean((1, 2)) / truth.shape[1] ** 0.5
    return (bright.clamp_min(0) / levels).sqrt()


def read_again(
    frames: Tensor,  # (6, count, H, W), as `Crops` stacks them
    strengths: Tensor,  # (count,)
    generator: torch.Generator,
) -> Tensor:
    """The same depth frames as a sensor sees them now; a surface pixel stays one where it has a reading."""
    truth, surface, known = frames[2], frames[4], frames[2] > 0
    depth, seen = Sensor()(PEAK_M * truth[:, None], generator, strengths)
    depth, seen = depth[:, 0], seen[:, 0]
    parts = (depth / PEAK_M, seen, truth, seen & known, seen & (surface > 0), ~seen & known)
    return torch.stack([part.float() for part in parts])


def _turned(planes: Tensor, matrix: object) -> Tensor:
    return torch.einsum("kc,bchw->bkhw", torch.as_tensor(matrix, dtype=planes.dtype, device=planes.device), planes)
