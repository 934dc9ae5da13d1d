"""Random crops of frames: a pure function of (seed, epoch, index), cut by the batch on the device that trains."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.data import CROP, Frame, Frames


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(np.random.SeedSequence([seed, epoch])).permutation(count)


def crop_frame(seed: int, epoch: int, index: int, count: int) -> int:
    """Which of `count` frames crop `index` is cut from: each run of `count` crops meets every frame once."""
    return int(_order(seed, epoch * 1_000_003 + index // count, count)[index % count])


class Window(NamedTuple):
    """Where a crop lies in its frame, and how it is turned over."""

    top: int
    left: int
    axes: tuple[int, ...]
    transposed: bool


def window(
    integral: NDArray[np.int32],  # (H + 1, W + 1), of the scored pixels
    seed: int,
    epoch: int,
    index: int,
    size: tuple[int, int] = CROP,
    flips: bool = False,
    least_scored: float = 0.1,
) -> Window:
    """The window of crop `index` of an epoch, drawn from (seed, epoch, index) alone.

    A window with fewer scored pixels than `least_scored` would carry no loss; the next of eight draws is taken then,
    or the fullest. A sensor's shadows fall to one side, so depth frames are best left unflipped.
    """
    height, width = integral.shape[0] - 1, integral.shape[1] - 1
    if height < size[0] or width < size[1]:
        raise ValueError(f"a crop of {size[1]}×{size[0]} does not fit in an image of {width}×{height}")
    rng = np.random.default_rng(np.random.SeedSequence([seed, epoch, index, 1]))
    best, most = (0, 0), -1
    for _ in range(8):
        top, left = int(rng.integers(height - size[0] + 1)), int(rng.integers(width - size[1] + 1))
        low, right = top + size[0], left + size[1]
        count = int(integral[low, right] - integral[top, right] - integral[low, left] + integral[top, left])
        if count > most:
            best, most = (top, left), count
        if count >= least_scored * size[0] * size[1]:
            break
    axes = tuple(axis for axis in (-2, -1) if flips and rng.random() < 0.5)
    return Window(*best, axes, flips and size[0] == size[1] and bool(rng.random() < 0.5))


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
    """Crop `index` of an epoch, at its ``window``."""
    where = window(integral_of(frame), seed, epoch, index, size, flips, least_scored)
    rows, columns = slice(where.top, where.top + size[0]), slice(where.left, where.left + size[1])
    return Frame(*(_turned(part[..., rows, columns], where).contiguous() for part in frame))


def _turned(part: Tensor, where: Window) -> Tensor:
    part = part.flip(where.axes) if where.axes else part
    return part.transpose(-2, -1) if where.transposed else part


def pixel_indices(
    places: list[Window], size: tuple[int, int], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:  # each broadcasts to (count, *size)
    """Row and column, in its frame, of every pixel of every crop: turning a crop over only reorders them."""
    steps = [torch.arange(length) for length in size]
    rows = torch.stack([p.top + (steps[0].flip(0) if -2 in p.axes else steps[0]) for p in places]).to(device)
    columns = torch.stack([p.left + (steps[1].flip(0) if -1 in p.axes else steps[1]) for p in places]).to(device)
    if not any(p.transposed for p in places):
        return rows[:, :, None], columns[:, None]
    transposed = torch.tensor([p.transposed for p in places], device=device)[:, None, None]
    return (
        torch.where(transposed, rows[:, None], rows[:, :, None]),
        torch.where(transposed, columns[:, :, None], columns[:, None]),
    )


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
        fresh_noise: bool = False,
        memory: int = 512,
        device: str = "cpu",
        sigma: float = 0.0,
    ) -> None:
        """`fresh_noise` draws simulated noise anew each epoch; `memory` is how many frames are kept decoded.

        `sigma` > 0 gives every batch Gaussian noise of its own, of sigma / 255, in place of what the frames came with:
        a net that meets the same noise again and again learns it by heart.
        """
        self.frames, self.size, self.seed = frames, size, seed
        self.flips, self.fresh_noise = flips, fresh_noise
        self.memory, self.device, self.sigma = memory, torch.device(device), sigma
        self._kept: dict[tuple[int, int], Frame] = {}
        self._stacked: Tensor | None = None  # (N, 6, H, W), once every frame is there
        self._integrals: list[NDArray[np.int32]] = []

    def crop(self, epoch: int, index: int) -> Frame:  # parts (1, *size)
        frame = self._frame(crop_frame(self.seed, epoch, index, len(self.frames)), epoch)
        return cut(frame, self.seed, epoch, index, self.size, self.flips)

    def _frame(self, which: int, epoch: int) -> Frame:
        # A plain dict, oldest out first, so that worker processes can receive a copy of this object.
        key = which, epoch if self.fresh_noise else 0
        if key not in self._kept:
            while len(self._kept) >= max(self.memory, 1):
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = self.frames.frame(which, key[1])
        return self._kept[key]

    def batch(self, epoch: int, first: int, count: int) -> Frame:  # parts (count, 1, *size)
        indices = range(first, first + count)
        if not self._stackable():
            crops = [self.crop(epoch, index) for index in indices]
            frame = Frame(*(torch.stack(column).to(self.device) for column in zip(*crops, strict=True)))
            return self._noised(frame, epoch, first)
        which = [crop_frame(self.seed, epoch, index, len(self.frames)) for index in indices]
        places = [
            window(self._integrals[w], self.seed, epoch, index, self.size, self.flips)
            for w, index in zip(which, indices, strict=True)
        ]
        return self._noised(self._gathered(which, places), epoch, first)

    def _noised(self, frame: Frame, epoch: int, first: int) -> Frame:
        if not self.sigma:
            return frame
        state = np.random.SeedSequence([self.seed, epoch, first, 2]).generate_state(1, np.uint64)[0]
        generator = torch.Generator(self.device).manual_seed(int(state >> np.uint64(1)))
        noise = torch.randn(frame.truth.shape, generator=generator, device=self.device)
        return frame._replace(noisy=frame.truth + self.sigma / 255 * noise)

    def _stackable(self) -> bool:
        if self._stacked is not None:
            return True
        if self.fresh_noise or len(self.frames) > self.memory:
            return False
        frames = [self._frame(which, 0) for which in range(len(self.frames))]
        if len({frame.truth.shape for frame in frames}) > 1:
            return False
        self._stacked = torch.stack([torch.cat([p.float() for p in frame]) for frame in frames]).to(self.device)
        self._integrals = [integral_of(frame) for frame in frames]
        self._kept.clear()
        return True

    def _gathered(self, which: list[int], places: list[Window]) -> Frame:
        assert self._stacked is not None
        height, width = self.size
        corners = [(w, p.top, p.left) for w, p in zip(which, places, strict=True)]
        if self.device.type == "cpu":
            pieces = [self._stacked[w, :, t : t + height, c : c + width] for w, t, c in corners]
            cropped = torch.stack([_turned(piece, p) for piece, p in zip(pieces, places, strict=True)], 1)
        else:  # one launch instead of one for each crop
            which_ = torch.tensor(which, device=self.device)[:, None, None]
            cropped = self._stacked.transpose(0, 1)[:, which_, *pixel_indices(places, self.size, self.device)]
        parts = cropped.unsqueeze(2)  # (6, count, 1, *size)
        noisy, valid, truth, scored, surface, hole = (part.contiguous() for part in parts)
        return Frame(noisy, valid > 0, truth, scored > 0, surface > 0, hole > 0)
