"""Random crops of frames: a pure function of (seed, epoch, index), cut by the batch on the device that trains."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.data import CROP, PEAK_M, Frame, Frames, generator_of
from spen.tasks.denoising.sensor import Sensor


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
    frame: Frame,  # parts (1, H, W)
    seed: int,
    epoch: int,
    index: int,
    size: tuple[int, int] = CROP,
    flips: bool = False,
    least_scored: float = 0.1,
) -> Frame:  # parts (1, *size)
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


def _stack(frames: list[Frame]) -> Tensor:  # (6, N, H, W)
    return torch.stack([torch.cat([part.float() for part in frame]) for frame in frames], 1)


class Crops:
    """Random crops of a set of frames; `batch(epoch, first, count)` depends on its arguments and the seed alone.

    Frames of one size are kept as one tensor on ``device`` and a batch is cut in one operation: cutting crops one by
    one in Python takes longer than a training step on a fast card.
    """

    def __init__(
        self,
        frames: Frames,
        size: tuple[int, int] = CROP,
        seed: int = 0,
        flips: bool = False,
        memory: int = 512,
        device: str = "cpu",
        sigma: float = 0.0,
        sensor: Sensor | None = None,
    ) -> None:
        """`memory` is how many frames are kept decoded.

        `sigma` > 0 gives every batch Gaussian noise of its own, of sigma / 255, in place of what the frames came with:
        a net that meets the same noise again and again learns it by heart. `sensor` reads the truth of every batch's
        frames anew: whole frames, which must be of one size, since what it misses depends on what stands around.
        """
        self.frames, self.size, self.seed, self.flips = frames, size, seed, flips
        self.memory, self.device, self.sigma, self.sensor = memory, torch.device(device), sigma, sensor
        self._kept: dict[int, Frame] = {}
        self._stacked: Tensor | None = None  # (6, N, H, W), once every frame is there
        self._integrals = np.zeros((0, 1, 1), np.int32)  # (N, H + 1, W + 1)

    def crop(self, epoch: int, index: int) -> Frame:  # parts (1, *size)
        """One crop, with the noise that its frame came with."""
        frame = self._frame(crop_frame(self.seed, epoch, index, len(self.frames)))
        return cut(frame, self.seed, epoch, index, self.size, self.flips)

    def _frame(self, which: int) -> Frame:
        # A plain dict, oldest out first, so that worker processes can receive a copy of this object.
        if which not in self._kept:
            while len(self._kept) >= max(self.memory, 1):
                self._kept.pop(next(iter(self._kept)))
            self._kept[which] = self.frames.frame(which)
        return self._kept[which]

    def batch(self, epoch: int, first: int, count: int) -> Frame:  # parts (count, 1, *size)
        indices = range(first, first + count)
        stacked = self._stackable()
        if not stacked and self.sensor is None:
            crops = [self.crop(epoch, index) for index in indices]
            frame = Frame(*(torch.stack(column).to(self.device) for column in zip(*crops, strict=True)))
            return self._noised(frame, epoch, first)
        which = np.array([crop_frame(self.seed, epoch, index, len(self.frames)) for index in indices])
        frames, integrals = self._stacked, self._integrals
        if not stacked:
            few = [self._frame(w) for w in which.tolist()]
            which = np.arange(count)
            frames, integrals = _stack(few).to(self.device), np.stack([integral_of(frame) for frame in few])
        assert frames is not None
        places = windows(integrals, which, self.seed, epoch, np.array(indices), self.size, self.flips)
        if self.sensor is not None:
            chosen = frames[:, _sent(torch.from_numpy(which), self.device)]
            frames, which = _read(chosen, self.sensor, self._generator(epoch, first, 3)), np.arange(count)
        return self._noised(self._gathered(frames, which, places), epoch, first)

    def _noised(self, frame: Frame, epoch: int, first: int) -> Frame:
        if not self.sigma:
            return frame
        noise = torch.randn(frame.truth.shape, generator=self._generator(epoch, first, 2), device=self.device)
        return frame._replace(noisy=frame.truth + self.sigma / 255 * noise)

    def _generator(self, epoch: int, first: int, purpose: int) -> torch.Generator:
        return generator_of(self.seed, epoch, first, purpose, device=self.device)

    def _stackable(self) -> bool:
        if self._stacked is not None:
            return True
        if len(self.frames) > self.memory:
            return False
        frames = [self._frame(which) for which in range(len(self.frames))]
        if len({frame.truth.shape for frame in frames}) > 1:
            return False
        self._stacked = _stack(frames).to(self.device)
        self._integrals = np.stack([integral_of(frame) for frame in frames])
        self._kept.clear()
        return True

    def _gathered(self, frames: Tensor, which: NDArray[np.int64], places: Windows) -> Frame:
        if self.device.type == "cpu":
            pieces = [_piece(frames[:, w], places, k, self.size) for k, w in enumerate(which.tolist())]
            cropped = torch.stack(pieces, 1)
        else:  # one launch instead of one for each crop
            cropped = frames[:, *pixel_indices(which, places, self.size, self.device)]
        parts = cropped.unsqueeze(2)  # (6, count, 1, *size)
        noisy, valid, truth, scored, surface, hole = (part.contiguous() for part in parts)
        return Frame(noisy, valid > 0, truth, scored > 0, surface > 0, hole > 0)


def _read(frames: Tensor, sensor: Sensor, generator: torch.Generator) -> Tensor:  # both (6, count, H, W)
    """The same frames as the sensor sees them now; a surface pixel stays one where it has a reading."""
    truth, surface, known = frames[2], frames[4], frames[2] > 0
    depth, seen = sensor(PEAK_M * truth[:, None], generator)
    depth, seen = depth[:, 0], seen[:, 0]
    parts = (depth / PEAK_M, seen, truth, seen & known, seen & (surface > 0), ~seen & known)
    return torch.stack([part.float() for part in parts])
