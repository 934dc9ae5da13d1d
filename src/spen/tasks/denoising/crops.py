"""Random crops of frames: a pure function of (seed, epoch, index), cut by the batch on the device that trains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.data import Frame, Frames, generator_of
from spen.tasks.denoising.noise import Kind, Noise
from spen.tasks.denoising.noise_estimate import frame_noise
from spen.tasks.denoising.simulate import deviations, draw_correlated, draw_levels, noisy, read_again

CROP = (96, 128)

BYTES = 4 * 2**30
"""Of decoded frames that are cached; the oldest are read again."""

LEAST_SCORED = 0.1
"""The share of scored pixels that a crop should have: one without any would carry no loss."""

_DRAWS = 8


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(np.random.SeedSequence([seed, epoch])).permutation(count)


def crop_frame(seed: int, epoch: int, index: int, count: int) -> int:
    """The frame, of `count`, that crop `index` is cut from: each run of `count` crops meets every frame once."""
    return int(_order(seed, epoch * 1_000_003 + index // count, count)[index % count])


class Windows(NamedTuple):
    """Where crops lie in their frames, and how each is flipped: (count,) each."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    upside_down: NDArray[np.bool_]
    mirrored: NDArray[np.bool_]
    transposed: NDArray[np.bool_]


def windows(
    integrals: NDArray[np.int32],  # (N, H + 1, W + 1), of the scored pixels of every frame
    which: NDArray[np.int64],  # (count,) the frame of each crop
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],  # (count,)
    size: tuple[int, int] = CROP,
    flips: bool = False,
) -> Windows:
    """The windows of crops of an epoch, each drawn from (seed, epoch, its index) alone.

    A window with fewer scored pixels than `LEAST_SCORED` is drawn again, up to eight times; then the fullest is taken.
    A sensor's shadows fall to one side, so depth frames are best left unflipped.
    """
    height, width = integrals.shape[1] - 1, integrals.shape[2] - 1
    if height < size[0] or width < size[1]:
        raise ValueError(f"a crop of {size[1]}×{size[0]} does not fit in an image of {width}×{height}")
    uniform = _uniform(seed, epoch, indices, 2 * _DRAWS + 3)
    top = (uniform[:, :_DRAWS] * (height - size[0] + 1)).astype(np.int64)  # (count, draws)
    left = (uniform[:, _DRAWS : 2 * _DRAWS] * (width - size[1] + 1)).astype(np.int64)
    low, right, frame = top + size[0], left + size[1], which[:, None]
    scored = integrals[frame, low, right] - integrals[frame, top, right]
    scored = scored - integrals[frame, low, left] + integrals[frame, top, left]
    enough = scored >= LEAST_SCORED * size[0] * size[1]
    best = np.where(enough.any(1), enough.argmax(1), scored.argmax(1))[:, None]
    turns = (uniform[:, 2 * _DRAWS :] < 0.5) & flips
    turns[:, 2] &= size[0] == size[1]
    return Windows(np.take_along_axis(top, best, 1)[:, 0], np.take_along_axis(left, best, 1)[:, 0], *turns.T)


def _uniform(seed: int, epoch: int, indices: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for every index: a counter through the mixing function of SplitMix64."""
    counter = indices.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)
    z: NDArray[np.uint64] = np.multiply(counter, np.uint64(0x9E3779B97F4A7C15))  # wraps around, as it should
    z = np.add(_key(seed, epoch), z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=8)
def _key(seed: int, epoch: int) -> NDArray[np.uint64]:
    return np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64).astype(np.uint64)


class Stack(NamedTuple):
    """Frames of one size as one tensor."""

    indices: NDArray[np.int64]  # (N,) of the frames, in rising order
    parts: Tensor  # (6, N, C, H, W)
    integrals: NDArray[np.int32]  # (N, H + 1, W + 1): how many scored pixels lie above and left of each corner

    @classmethod
    def of(cls, frames: dict[int, Frame], device: torch.device) -> Stack:
        columns = zip(*frames.values(), strict=True)
        parts = torch.stack([torch.stack([part.float() for part in column]) for column in columns])
        scored = parts[3, :, 0].numpy().astype(np.int32)
        sums = scored.cumsum(1, dtype=np.int32).cumsum(2, dtype=np.int32)
        return cls(np.array(list(frames)), parts.to(device), np.pad(sums, ((0, 0), (1, 0), (1, 0))))


class Crops:
    """Random crops of a set of frames; `batch(epoch, first, count)` depends on its arguments and the seed alone.

    Frames are stacked by size on ``device``: all of them once if they fit into ``BYTES``, else those of each batch.
    The planes of colours count as images of their own.
    """

    def __init__(
        self,
        frames: Frames,
        size: tuple[int, int] = CROP,
        seed: int = 0,
        flips: bool = False,
        device: str = "cpu",
        noise: Noise | None = None,
        kind: Kind | None = None,
    ) -> None:
        """`noise` is drawn anew for every crop, in place of what the frames came with: a net that meets the same noise
        again and again memorises it. A sensor reads whole frames anew, since what it misses depends on what stands
        around. With `kind`, `noisy_batch` also returns the noise of every crop: the level that was drawn, or an
        estimate from the whole frame where noise is real.
        """
        self.frames, self.size, self.seed, self.flips = frames, size, seed, flips
        self.device, self.noise, self.kind = torch.device(device), noise, kind
        self._cache: dict[int, Frame] = {}
        self._stacks: list[Stack] | None = None
        self._estimates: dict[int, Tensor] = {}

    def batch(self, epoch: int, first: int, count: int) -> Frame:  # parts (count·C, 1, *size)
        return self.noisy_batch(epoch, first, count)[0]

    def noisy_batch(self, epoch: int, first: int, count: int) -> tuple[Frame, Tensor | None]:
        """The crops, and with ``kind`` the standard deviation of the noise of each of their planes."""
        indices, noise = np.arange(first, first + count), self.noise
        which = np.array([crop_frame(self.seed, epoch, index, len(self.frames)) for index in indices.tolist()])
        levels = None if noise is None else draw_levels(noise, count, self._generator(epoch, first, 5))
        correlated = None if noise is None else draw_correlated(noise, count, self._generator(epoch, first, 7))
        sensor, crops = self._generator(epoch, first, 3), dict[int, Tensor]()
        for stack in self._stacks_of(which):
            members = np.flatnonzero(np.isin(which, stack.indices))
            rows, parts = np.searchsorted(stack.indices, which[members]), stack.parts
            places = windows(stack.integrals, rows, self.seed, epoch, indices[members], self.size, self.flips)
            if levels is not None and noise is not None and noise.kind == "depth-sensor":
                parts = parts[:, torch.from_numpy(rows).to(self.device)]
                of_members = None if correlated is None else correlated[members]
                parts, rows = read_again(parts, levels[members], sensor, of_members), np.arange(len(rows))
            for member, row, *window in zip(*(a.tolist() for a in (members, rows, *places)), strict=True):
                crops[member] = _cut(parts[:, row], self.size, *window)
        noisy_, valid, truth, *masks = torch.stack([crops[member] for member in range(count)], 1)
        if levels is not None and noise is not None and noise.kind != "depth-sensor":
            noisy_ = noisy(noise, truth, levels, self._generator(epoch, first, 2))
        found = Frame(noisy_, valid > 0, truth, *(mask > 0 for mask in masks))
        level = self._noise_of(truth, which, levels, correlated)
        return Frame(*(part.flatten(0, 1)[:, None] for part in found)), level

    def _noise_of(
        self, truth: Tensor, which: NDArray[np.int64], levels: Tensor | None, correlated: Tensor | None
    ) -> Tensor | None:  # (count·C,)
        if self.kind is None:
            return None
        if self.noise is not None and levels is not None:
            noise = deviations(self.noise, levels, truth, correlated)
        else:
            for index in set(which.tolist()) - self._estimates.keys():
                self._estimates[index] = frame_noise(self.frames.frame(index), self.kind)
            noise = torch.stack([self._estimates[index] for index in which.tolist()]).to(self.device)
        return noise.repeat_interleave(truth.shape[1])

    def _generator(self, epoch: int, first: int, purpose: int) -> torch.Generator:
        return generator_of(self.seed, epoch, first, purpose, device=self.device)

    def _stacks_of(self, which: NDArray[np.int64]) -> list[Stack]:
        """The frames of a batch, stacked by size."""
        if self._stacks is None and self._all_fit:
            self._stacks, self._cache = self._stacked(range(len(self.frames))), {}
        return self._stacks or self._stacked(sorted(set(which.tolist())))

    @cached_property
    def _all_fit(self) -> bool:
        sizes = (_bytes(self._frame(index)) for index in range(len(self.frames)))
        return all(total <= BYTES for total in accumulate(sizes))

    def _stacked(self, indices: Iterable[int]) -> list[Stack]:
        by_size: dict[torch.Size, dict[int, Frame]] = defaultdict(dict)
        for index in indices:
            frame = self._frame(index)
            by_size[frame.truth.shape][index] = frame
        return [Stack.of(frames, self.device) for frames in by_size.values()]

    def _frame(self, index: int) -> Frame:
        if index not in self._cache:
            frame = self.frames.frame(index)
            while self._cache and (len(self._cache) + 1) * _bytes(frame) > BYTES:
                self._cache.pop(next(iter(self._cache)))  # the oldest
            self._cache[index] = frame
        return self._cache[index]


def _cut(
    parts: Tensor, size: tuple[int, int], top: int, left: int, upside_down: bool, mirrored: bool, transposed: bool
) -> Tensor:  # (…, H, W) -> (…, *size)
    parts = parts[..., top : top + size[0], left : left + size[1]]
    axes = [axis for axis, turned in ((-2, upside_down), (-1, mirrored)) if turned]
    parts = parts.flip(axes) if axes else parts
    return parts.transpose(-2, -1) if transposed else parts


def _bytes(frame: Frame) -> int:
    """Of a frame in a ``Stack``."""
    return 4 * len(frame) * frame.truth.numel()
