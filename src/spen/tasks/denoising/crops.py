"""Random crops of frames: a pure function of (seed, epoch, index), cut by the batch on the device that trains."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.data import CROP, Frame, Frames, generator_of
from spen.tasks.denoising.noise import Kind, Noise
from spen.tasks.denoising.noise_estimate import frame_noise
from spen.tasks.denoising.simulate import deviations, draw_levels, noisy, read_again


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(np.random.SeedSequence([seed, epoch])).permutation(count)


def crop_frame(seed: int, epoch: int, index: int, count: int) -> int:
    """Which of `count` frames crop `index` is cut from: each run of `count` crops meets every frame once."""
    return int(_order(seed, epoch * 1_000_003 + index // count, count)[index % count])


class Windows(NamedTuple):
    """Where crops lie in their frames, and how each is turned over: (count,) each."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    upside_down: NDArray[np.bool_]
    mirrored: NDArray[np.bool_]
    transposed: NDArray[np.bool_]

    def repeated(self, times: int) -> Windows:
        """Each one so many times."""
        return Windows(*(part.repeat(times) for part in self))  # type: ignore[arg-type]


_DRAWS = 8


def windows(
    integrals: NDArray[np.int32],  # (N, H + 1, W + 1), of the scored pixels of every frame
    which: NDArray[np.int64],  # (count,) the frame of each crop
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],  # (count,)
    size: tuple[int, int] = CROP,
    flips: bool = False,
    least_scored: float = 0.1,
) -> Windows:
    """The windows of crops of an epoch, each drawn from (seed, epoch, its index) alone, whichever others are asked for.

    A window with fewer scored pixels than `least_scored` would carry no loss; the next of eight draws is taken then,
    or the fullest. A sensor's shadows fall to one side, so depth frames are best left unflipped.
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
    enough = scored >= least_scored * size[0] * size[1]
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


def integral_of(frame: Frame) -> NDArray[np.int32]:
    """Sums of the scored pixels above and left of every corner, so that any window is counted at once."""
    scored = frame.scored[0].numpy().astype(np.int32)
    return np.pad(scored.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32), ((1, 0), (1, 0)))


def cut(
    frame: Frame,  # parts (C, H, W)
    seed: int,
    epoch: int,
    index: int,
    size: tuple[int, int] = CROP,
    flips: bool = False,
    least_scored: float = 0.1,
) -> Frame:  # parts (C, *size)
    """Crop `index` of an epoch, at its window."""
    first, only = np.zeros(1, np.int64), np.array([index])
    where = windows(integral_of(frame)[None], first, seed, epoch, only, size, flips, least_scored)
    return Frame(*(_piece(part, where, 0, size).contiguous() for part in frame))


def _piece(part: Tensor, places: Windows, k: int, size: tuple[int, int]) -> Tensor:  # (…, H, W) -> (…, *size)
    top, left = int(places.top[k]), int(places.left[k])
    part = part[..., top : top + size[0], left : left + size[1]]
    axes = [axis for axis, turned in ((-2, places.upside_down[k]), (-1, places.mirrored[k])) if turned]
    part = part.flip(axes) if axes else part
    return part.transpose(-2, -1) if places.transposed[k] else part


def pixel_indices(
    which: NDArray[np.int64], places: Windows, size: tuple[int, int], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:  # each broadcasts to (count, *size)
    """Frame, row and column of every pixel of every crop: turning a crop over only reorders them."""
    rows, columns = (
        start[:, None] + np.where(turned[:, None], np.arange(length)[::-1], np.arange(length))
        for start, turned, length in zip(places[:2], places[2:4], size, strict=True)
    )
    table = torch.from_numpy(np.concatenate([rows, columns, which[:, None], places.transposed[:, None]], 1))
    down, across, frame, swapped = (part[:, None] for part in _sent(table, device).split([*size, 1, 1], 1))
    if not places.transposed.any():
        return frame, down.mT, across
    swap = swapped > 0
    return frame, torch.where(swap, down, down.mT), torch.where(swap, across.mT, across)


def _sent(table: Tensor, device: torch.device | str) -> Tensor:
    """On the device, by one copy that the host does not wait for."""
    if torch.device(device).type != "cuda":
        return table
    return table.pin_memory().to(device, non_blocking=True)


def _stack(frames: list[Frame]) -> Tensor:  # (6, N·C, H, W)
    return torch.stack([torch.cat([part.float() for part in column]) for column in zip(*frames, strict=True)])


BYTES = 4 * 2**30
"""Of decoded frames that are kept; the oldest are read again."""


class Crops:
    """Random crops of a set of frames; `batch(epoch, first, count)` depends on its arguments and the seed alone.

    Frames of one size are kept as one tensor on ``device`` and a batch is cut in one operation: cutting crops one by
    one in Python takes longer than a training step on a fast card. The planes of colours count as images of their own.
    """

    def __init__(
        self,
        frames: Frames,
        size: tuple[int, int] = CROP,
        seed: int = 0,
        flips: bool = False,
        memory: int = 512,
        device: str = "cpu",
        noise: Noise | None = None,
        kind: Kind | None = None,
    ) -> None:
        """`memory` is how many frames are kept decoded.

        `noise` is drawn anew for every crop, in place of what the frames came with: a net that meets the same noise
        again and again learns it by heart. A sensor reads whole frames anew, since what it misses depends on what
        stands around. `kind` asks for the noise of every crop as well: the level that was drawn, or an estimate from
        the whole frame where noise is real.
        """
        self.frames, self.size, self.seed, self.flips = frames, size, seed, flips
        self.memory, self.device, self.noise, self.kind = memory, torch.device(device), noise, kind
        self._kept: dict[int, Frame] = {}
        self._stacked: Tensor | None = None  # (6, N·C, H, W), once every frame is there
        self._planes = 1  # C
        self._integrals = np.zeros((0, 1, 1), np.int32)  # (N, H + 1, W + 1)
        self._estimates: dict[int, Tensor] = {}
        self._scattered = len(frames) > memory  # whether frames cannot be stacked

    def crop(self, epoch: int, index: int) -> Frame:  # parts (C, *size)
        """One crop, with the noise that its frame came with."""
        frame = self._frame(crop_frame(self.seed, epoch, index, len(self.frames)))
        return cut(frame, self.seed, epoch, index, self.size, self.flips)

    def _frame(self, which: int) -> Frame:
        # A plain dict, oldest out first, so that worker processes can receive a copy of this object.
        if which not in self._kept:
            frame = self.frames.frame(which)
            room = min(self.memory, BYTES // _bytes(frame))
            while len(self._kept) >= max(room, 1):
                self._kept.pop(next(iter(self._kept)))
            self._kept[which] = frame
        return self._kept[which]

    def batch(self, epoch: int, first: int, count: int) -> Frame:  # parts (count·C, 1, *size)
        return self.noisy_batch(epoch, first, count)[0]

    def noisy_batch(self, epoch: int, first: int, count: int) -> tuple[Frame, Tensor | None]:
        """The crops, and the standard deviation of the noise of each of their planes, if ``kind`` asked for it."""
        indices = range(first, first + count)
        levels = None
        if self.noise is not None:
            levels = draw_levels(self.noise, count, self._generator(epoch, first, 5))
        which = np.array([crop_frame(self.seed, epoch, index, len(self.frames)) for index in indices])
        sensing = self.noise is not None and self.noise.kind == "depth-sensor"
        stacked = self._stackable()
        few = [] if stacked or not sensing else [self._frame(w) for w in which.tolist()]
        if stacked or (sensing and len({frame.truth.shape for frame in few}) == 1):
            found = self._cut_together(few, which, epoch, first, levels if sensing else None)
        else:
            crops = []
            for k, index in enumerate(indices):
                frame = self._frame(int(which[k]))
                if sensing:
                    assert levels is not None
                    once = read_again(
                        _stack([frame]), levels[k : k + 1].cpu(), generator_of(self.seed, epoch, index, 3)
                    )
                    frame = _frame_of(once[:, 0, None])
                crops.append(cut(frame, self.seed, epoch, index, self.size, self.flips))
            found = Frame(*(torch.stack(column).to(self.device) for column in zip(*crops, strict=True)))
        if self.noise is not None and levels is not None and not sensing:
            found = found._replace(noisy=noisy(self.noise, found.truth, levels, self._generator(epoch, first, 2)))
        told = self._told(found, which, levels)
        return Frame(*(part.flatten(0, 1)[:, None] for part in found)), told

    def _cut_together(
        self, few: list[Frame], which: NDArray[np.int64], epoch: int, first: int, strengths: Tensor | None
    ) -> Frame:  # parts (count, C, *size)
        """Crops of frames of one size: of the stacked ones, or of the ``few`` of this batch."""
        count, frames, integrals = len(which), self._stacked, self._integrals
        if few:
            which = np.arange(count)
            frames, integrals = _stack(few).to(self.device), np.stack([integral_of(frame) for frame in few])
        assert frames is not None
        indices = np.arange(first, first + count)
        places = windows(integrals, which, self.seed, epoch, indices, self.size, self.flips)
        if strengths is not None:
            chosen = frames[:, _sent(torch.from_numpy(which), self.device)]
            frames, which = read_again(chosen, strengths, self._generator(epoch, first, 3)), np.arange(count)
        if self._planes > 1:
            which = (which[:, None] * self._planes + np.arange(self._planes)).reshape(-1)
            places = places.repeated(self._planes)
        return self._gathered(frames, which, places, count)

    def _told(self, found: Frame, which: NDArray[np.int64], levels: Tensor | None) -> Tensor | None:  # (count·C,)
        if self.kind is None:
            return None
        if self.noise is not None and levels is not None:
            told = deviations(self.noise, levels, found.truth)
        else:
            told = torch.stack([self._estimate(w) for w in which.tolist()]).to(self.device)
        return told.repeat_interleave(found.truth.shape[1])

    def _estimate(self, which: int) -> Tensor:
        if which not in self._estimates:
            assert self.kind is not None
            self._estimates[which] = frame_noise(self.frames.frame(which), self.kind)
        return self._estimates[which]

    def _generator(self, epoch: int, first: int, purpose: int) -> torch.Generator:
        return generator_of(self.seed, epoch, first, purpose, device=self.device)

    def _stackable(self) -> bool:
        if self._stacked is not None:
            return True
        if self._scattered or len(self.frames) * _bytes(self._frame(0)) > BYTES:
            return False
        shape, frames = self._frame(0).truth.shape, []
        for which in range(len(self.frames)):
            frames.append(self._frame(which))
            if frames[-1].truth.shape != shape:
                self._scattered = True
                return False
        self._stacked, self._planes = _stack(frames).to(self.device), frames[0].truth.shape[0]
        self._integrals = np.stack([integral_of(frame) for frame in frames])
        self._kept.clear()
        return True

    def _gathered(self, frames: Tensor, which: NDArray[np.int64], places: Windows, count: int) -> Frame:
        if self.device.type == "cpu":
            pieces = [_piece(frames[:, w], places, k, self.size) for k, w in enumerate(which.tolist())]
            cropped = torch.stack(pieces, 1)
        else:  # one launch instead of one for each crop
            cropped = frames[:, *pixel_indices(which, places, self.size, self.device)]
        return _frame_of(cropped.unflatten(1, (count, -1)))


def _frame_of(parts: Tensor) -> Frame:  # (6, …)
    noisy, valid, truth, scored, surface, hole = (part.contiguous() for part in parts)
    return Frame(noisy, valid > 0, truth, scored > 0, surface > 0, hole > 0)


def _bytes(frame: Frame) -> int:
    """Of a frame as ``_stack`` keeps it."""
    return 4 * len(frame) * frame.truth.numel()
