"""What a denoiser is trained and scored on: squared error and PSNR over the pixels whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frame, Frames
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.priors import Observation


class Target(NamedTuple):
    """y* and where it counts."""

    truth: Tensor  # (B, 1, H, W)
    scored: Tensor  # (B, 1, H, W), 1 where the truth is known and the sensor had a reading


def observation(frame: Frame) -> Observation:
    """x: the reading and what of it is real. Parts (B, 1, H, W)."""
    return Observation(frame.noisy, frame.valid.to(frame.noisy.dtype))


def target(frame: Frame) -> Target:
    return Target(frame.truth, frame.scored.to(frame.truth.dtype))


def masked_squared_error(y: Tensor, target: Target) -> Tensor:
    """Σ s(y − y*)² / Σ s, per example."""
    error = ((y - target.truth).square() * target.scored).flatten(1).sum(1)
    return error / target.scored.flatten(1).sum(1).clamp_min(1)


def summed_squared_error(y: Tensor, target: Target) -> Tensor:
    """Σ s(y − y*)², per example: Δ of the structured SVM, on the scale of an energy that sums over pixels."""
    return ((y - target.truth).square() * target.scored).flatten(1).sum(1)


class PSNR(Metric):
    """20·log10(1 / RMSE) per frame over its scored pixels, then the mean over frames.

    NaN where an answer is not a number, which makes an epoch never the best.
    """

    higher_is_better = True
    full_state_update = False
    total: Tensor
    frames: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("frames", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: Target) -> None:
        values = psnr(y, target.truth, target.scored > 0)
        known = ~values.isnan()
        self.total += values[known].sum()
        self.frames += known.sum()

    def compute(self) -> Tensor:
        mean = self.total / self.frames
        return torch.where(mean.isneginf(), torch.nan, mean)


class CropSource:
    """Batches of random crops; an epoch is ``batches_per_epoch`` of them, a pure function of (seed, epoch)."""

    def __init__(self, crops: Crops, batch_size: int, batches_per_epoch: int) -> None:
        self.crops, self.batch_size, self.per_epoch = crops, batch_size, batches_per_epoch

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        for k in range(self.per_epoch):
            frame = self.crops.batch(epoch, (k * world + rank) * self.batch_size, self.batch_size)
            yield observation(frame), target(frame)

    def count(self, world: int = 1) -> int:
        return self.per_epoch


class FrameSource:
    """Whole frames, one after another, of whatever size each has."""

    def __init__(self, frames: Frames, batch_size: int = 1) -> None:
        self.frames, self.batch_size = frames, batch_size
        self._kept: list[tuple[Any, Any]] = []

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        if not self._kept:  # decoding a frame costs more than scoring it
            indices = range(0, len(self.frames), self.batch_size)
            self._kept = [self._batch(first) for first in indices]
        for k in range(self.count(world)):
            yield self._kept[min(k * world + rank, len(self._kept) - 1)]

    def count(self, world: int = 1) -> int:
        return math.ceil(self._batches / world)

    def own(self, rank: int, world: int) -> int:
        """How many of its batches are no repeats."""
        return len(range(rank, self._batches, world))

    @property
    def _batches(self) -> int:
        return math.ceil(len(self.frames) / self.batch_size)

    def _batch(self, first: int) -> tuple[Any, Any]:
        frames = [self.frames.frame(i) for i in range(first, min(first + self.batch_size, len(self.frames)))]
        whole = Frame(*(torch.stack(parts) for parts in zip(*frames, strict=True)))
        return observation(whole), target(whole)
