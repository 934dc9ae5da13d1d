"""Batches of crops for training, of whole frames for scoring, and the metric that scores them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frame, Frames, generator_of
from spen.tasks.denoising.energy import Observed, with_noise
from spen.tasks.denoising.losses import Target, observation, target
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import frame_noise


class CropSource:
    """Batches of random crops; an epoch is ``batches_per_epoch`` of them, a pure function of (seed, epoch).

    A noise-conditioned model gets a noise level with an error, as an estimate has one: of a tenth, and of
    ``noise_error`` in units of the image.
    """

    def __init__(
        self, crops: Crops, batch_size: int, batches_per_epoch: int, noise_error: float = 0.0, every_pixel: bool = False
    ) -> None:
        self.crops, self.batch_size, self.per_epoch = crops, batch_size, batches_per_epoch
        self.noise_error, self.every_pixel = noise_error, every_pixel

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        for k in range(self.per_epoch):
            first = (k * world + rank) * self.batch_size
            frame, noise = self.crops.noisy_batch(epoch, first, self.batch_size)
            x: Observed = observation(frame)
            if noise is not None:
                generator = generator_of(self.crops.seed, epoch, first, 6, device=noise.device)
                error = torch.randn(2, *noise.shape, generator=generator, device=noise.device)
                x = with_noise(x, torch.hypot(noise * torch.exp(0.1 * error[0]), self.noise_error * error[1]))
            yield x, target(frame, self.every_pixel)

    def count(self, world: int = 1) -> int:
        return self.per_epoch


class FrameSource:
    """Whole frames in order, in batches of one size; ``kind`` adds an estimate of their noise."""

    def __init__(
        self, frames: Frames, batch_size: int = 1, kind: Kind | None = None, every_pixel: bool = False
    ) -> None:
        self.frames, self.batch_size, self.kind, self.every_pixel = frames, batch_size, kind, every_pixel

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        for k in range(self.count(world)):
            yield self._all[min(k * world + rank, len(self._all) - 1)]

    def count(self, world: int = 1) -> int:
        return math.ceil(len(self._all) / world)

    def own(self, rank: int, world: int) -> int:
        """How many of its batches are no repeats."""
        return len(range(rank, len(self._all), world))

    @cached_property  # decoding a frame costs more than scoring it
    def _all(self) -> list[tuple[Any, Any]]:
        groups: list[list[Frame]] = []
        for index in range(len(self.frames)):
            frame = self.frames.frame(index)
            if not groups or len(groups[-1]) == self.batch_size or frame.truth.shape != groups[-1][0].truth.shape:
                groups.append([])
            groups[-1].append(frame)
        return [self._batch(group) for group in groups]

    def _batch(self, frames: list[Frame]) -> tuple[Any, Any]:
        whole = Frame(*(torch.cat(parts)[:, None] for parts in zip(*frames, strict=True)))
        x: Observed = observation(whole)
        if self.kind is not None:
            each = [frame_noise(frame, self.kind).expand(frame.truth.shape[0]) for frame in frames]
            x = with_noise(x, torch.cat(each))
        return x, target(whole, self.every_pixel)


class PSNR(Metric):
    """20·log10(1 / RMSE) per frame over its scored pixels, then the mean over frames.

    NaN where an answer is not a number, which makes an epoch never the best. The ``planes`` of a frame in colour follow
    one another in the batch.
    """

    higher_is_better = True
    full_state_update = False
    total: Tensor
    frames: Tensor

    def __init__(self, planes: int = 1) -> None:
        super().__init__()
        self.planes = planes
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("frames", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: Target) -> None:
        y, truth, scored = (part.reshape(-1, self.planes, *part.shape[-2:]) for part in (y, *target))
        values = psnr(y, truth, scored > 0)
        known = ~values.isnan()
        self.total += values[known].sum()
        self.frames += known.sum()

    def compute(self) -> Tensor:
        mean = self.total / self.frames
        return torch.where(mean.isneginf(), torch.nan, mean)
