"""Batches of crops for training, and of whole frames for scoring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frame, Frames
from spen.tasks.denoising.losses import observation, target


class CropSource:
    """Batches of random crops; an epoch is ``batches_per_epoch`` of them, a pure function of (seed, epoch)."""

    def __init__(self, crops: Crops, batch_size: int, batches_per_epoch: int, every_pixel: bool = False) -> None:
        self.crops, self.batch_size, self.per_epoch = crops, batch_size, batches_per_epoch
        self.every_pixel = every_pixel

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        for k in range(self.per_epoch):
            frame = self.crops.batch(epoch, (k * world + rank) * self.batch_size, self.batch_size)
            yield observation(frame), target(frame, self.every_pixel)

    def count(self, world: int = 1) -> int:
        return self.per_epoch


class FrameSource:
    """Whole frames, one after another, of whatever size each has."""

    def __init__(self, frames: Frames, batch_size: int = 1, every_pixel: bool = False) -> None:
        self.frames, self.batch_size, self.every_pixel = frames, batch_size, every_pixel
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
        return observation(whole), target(whole, self.every_pixel)
