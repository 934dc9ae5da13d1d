"""A frame is (noisy, valid, truth, scored, surface, hole), each C×H×W; images are depth / 4000 mm, or values / 255.

C is 1, or 3 for colours (``images.OPPONENT``): a model answers the planes one by one.

Frames and crops are pure functions of (seed, epoch, index), so a run that is stopped and resumed sees the same data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.images import DEPTH_PEAK_MM, BadImage, load_image
from spen.tasks.denoising.metrics import surface_mask
from spen.tasks.denoising.rooms.scenes import SPLITS, room_frame
from spen.tasks.denoising.sensor import STRENGTH_30DB_ROOMS, Sensor

PEAK_M = DEPTH_PEAK_MM / 1000
CLEAN_UNITS_PER_MM = 2.0
"""The prepared form stores truth in half millimetres."""

CROP = (96, 128)


class Frame(NamedTuple):
    """One image, or a batch of them; masks are bool."""

    noisy: Tensor  # (C, H, W) float32, 0 where the sensor saw nothing
    valid: Tensor  # (C, H, W) the sensor saw it
    truth: Tensor  # (C, H, W) float32, 0 where it is not known
    scored: Tensor  # (C, H, W) valid and truth is known
    surface: Tensor  # (C, H, W) scored, away from depth edges and missing readings
    hole: Tensor  # (C, H, W) not valid, and truth is known

    def to(self, device: torch.device | str) -> Frame:
        return Frame(*(part.to(device, non_blocking=True) for part in self))


class Frames(Protocol):
    """A set of frames; `epoch` draws the noise anew where noise is simulated and changes nothing where it is real."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str: ...

    def frame(self, index: int, epoch: int = 0) -> Frame: ...


# ── frames ──


def depth_frame(noisy_m: Tensor, valid: Tensor, truth_m: Tensor) -> Frame:  # each (1, H, W), metres
    """The frame of a depth reading and its truth: masks as the benchmark defines them."""
    known = truth_m > 0
    surface = surface_mask(truth_m[0].double().numpy() * 1000, valid[0].numpy())
    return Frame(
        noisy=torch.where(valid, noisy_m, 0.0).float() / PEAK_M,
        valid=valid,
        truth=truth_m.float() / PEAK_M,
        scored=valid & known,
        surface=torch.from_numpy(surface)[None],
        hole=~valid & known,
    )


def image_frame(noisy: Tensor, truth: Tensor, valid: Tensor | None = None) -> Frame:  # each (C, H, W)
    """The frame of an image without depth: every pixel of the truth is known, and there are no edges of surfaces."""
    every = torch.ones(1, 1, 1, dtype=torch.bool).expand_as(truth) if valid is None else valid  # takes no memory
    return Frame(torch.where(every, noisy, 0.0), every, truth, every, every, ~every)


def generator_of(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Random numbers that depend on the key alone."""
    # SeedSequence mixes the key, so that neighbouring seeds, epochs and indices have unrelated streams.
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


class DepthPairs:
    """Frame pairs `NNNNNN.raw.png` (mm) and `NNNNNN.clean.png` (half mm) of `folder/split`, both 16-bit, one size."""

    def __init__(self, folder: str | Path, split: str, every: int = 1) -> None:
        self.folder = Path(folder) / split
        if not self.folder.is_dir():
            raise BadImage(f"{self.folder}: there is no such folder; frame pairs are in {', '.join(SPLITS)}")
        raw = {path.name.split(".")[0] for path in self.folder.glob("*.raw.png")}
        clean = {path.name.split(".")[0] for path in self.folder.glob("*.clean.png")}
        for lone, have, need in ((raw - clean, "raw", "clean"), (clean - raw, "clean", "raw")):
            if lone:
                first = min(lone)
                raise BadImage(f"{self.folder / f'{first}.{have}.png'}: its pair {first}.{need}.png is missing")
        if not raw:
            raise BadImage(f"{self.folder}: holds no frame pair (NNNNNN.raw.png and NNNNNN.clean.png)")
        self._names = sorted(raw)[::every]
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return self._names[index]

    def _load(self, index: int, kind: str) -> NDArray[np.generic]:
        path = self.folder / f"{self._names[index]}.{kind}.png"
        values = load_image(path).values
        if values.dtype != np.uint16:
            raise BadImage(f"{path}: has {values.dtype.itemsize * 8} bits a pixel, but depth frames have 16")
        if self._shape is None:
            self._shape = values.shape
        if values.shape != self._shape:
            size, need = (f"{shape[1]}×{shape[0]}" for shape in (values.shape, self._shape))
            raise BadImage(f"{path}: is {size}, but the frames before it are {need}")
        return values

    def truth(self, index: int) -> Tensor:  # (1, H, W) metres
        return torch.from_numpy(self._load(index, "clean").astype(np.float32) / (1000 * CLEAN_UNITS_PER_MM))[None]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        raw = torch.from_numpy(self._load(index, "raw").astype(np.float32) / 1000)[None]
        return depth_frame(raw, raw > 0, self.truth(index))


class Rooms:
    """Built-in rooms seen through the sensor model; needs no download."""

    def __init__(self, split: str, count: int, seed: int = 0, sensor: Sensor | None = None) -> None:
        if count < 1:
            raise ValueError(f"count is {count} but there must be at least one frame")
        if split not in SPLITS:
            raise ValueError(f"split is {split!r} but must be one of {', '.join(SPLITS)}")
        self.split, self.count, self.seed = split, count, seed
        self.sensor = sensor if sensor is not None else Sensor(STRENGTH_30DB_ROOMS)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"{self.split}-{index:06d}"

    def truth(self, index: int) -> Tensor:  # (1, H, W) metres
        return torch.from_numpy(room_frame(self.split, index, self.seed))[None]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.truth(index)
        return depth_frame(*self.sensor(truth, generator_of(self.seed, SPLITS.index(self.split), epoch, index)), truth)


class Images:
    """The images of files, as truth: grey as one plane, colours as three."""

    def __init__(self, paths: Sequence[Path], peak: float | None = None, *, depth: bool = False, colour: bool = False):
        self.paths, self.peak, self.depth, self.colour = list(paths), peak, depth, colour

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index].name

    def truth(self, index: int) -> Tensor:  # (C, H, W), depth in metres
        image = load_image(self.paths[index], self.peak)
        planes = (image.in_colour() if self.colour else image).tensor()
        return PEAK_M * planes if self.depth else planes
