"""Batches of crops for training, and of whole frames for scoring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frame, Frames, generator_of
from spen.tasks.denoising.energy import NoisyObservation, Observed
from spen.tasks.denoising.losses import observation, target
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import frame_noise


class CropSource:
    """Batches of random crops; an epoch is ``batches_per_epoch`` of them, a pure function of (seed, epoch).

    A model that is told the noise gets it with an error, as an estimate has one: of a tenth, and of ``wrong``.
    """

    def __init__(
        self, crops: Crops, batch_size: int, batches_per_epoch: int, wrong: float = 0.0, every_pixel: bool = False
    ) -> None:
        self.crops, self.batch_size, self.per_epoch = crops, batch_size, batches_per_epoch
        self.wrong, self.every_pixel = wrong, every_pixel

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        for k in range(self.per_epoch):
            first = (k * world + rank) * self.batch_size
            frame, noise = self.crops.noisy_batch(epoch, first, self.batch_size)
            x: Observed = observation(frame)
            if noise is not None:
                generator = generator_of(self.crops.seed, epoch, first, 6, device=noise.device)
                error = torch.randn(2, *noise.shape, generator=generator, device=noise.device)
                noise = torch.hypot(noise * torch.exp(0.1 * error[0]), self.wrong * error[1])
                x = NoisyObservation(x.image, x.seen, noise.view(-1, 1, 1, 1))
            yield x, target(frame, self.every_pixel)

    def count(self, world: int = 1) -> int:
        return self.per_epoch


class FrameSource:
    """Whole frames, one after another, as many of one size in a batch as may be; ``kind`` asks for their noise."""

    def __init__(
        self, frames: Frames, batch_size: int = 1, kind: Kind | None = None, every_pixel: bool = False
    ) -> None:
        self.frames, self.batch_size, self.kind, self.every_pixel = frames, batch_size, kind, every_pixel
        self._kept: list[tuple[Any, Any]] = []

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        kept = self._read()
        for k in range(self.count(world)):
            yield kept[min(k * world + rank, len(kept) - 1)]

    def count(self, world: int = 1) -> int:
        return math.ceil(len(self._read()) / world)

    def own(self, rank: int, world: int) -> int:
        """How many of its batches are no repeats."""
        return len(range(rank, len(self._read()), world))

    def _read(self) -> list[tuple[Any, Any]]:
        if not self._kept:  # decoding a frame costs more than scoring it
            group: list[Frame] = []
            for index in range(len(self.frames)):
                frame = self.frames.frame(index)
                if group and (len(group) == self.batch_size or frame.truth.shape != group[0].truth.shape):
                    self._kept.append(self._batch(group))
                    group = []
                group.append(frame)
            self._kept.append(self._batch(group))
        return self._kept

    def _batch(self, frames: list[Frame]) -> tuple[Any, Any]:
        whole = Frame(*(torch.cat(parts)[:, None] for parts in zip(*frames, strict=True)))
        x: Observed = observation(whole)
        if self.kind is not None:
            each = [frame_noise(frame, self.kind).expand(frame.truth.shape[0]) for frame in frames]
            x = NoisyObservation(x.image, x.seen, torch.cat(each).view(-1, 1, 1, 1))
        return x, target(whole, self.every_pixel)
