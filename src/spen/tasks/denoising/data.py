"""A frame is (noisy, valid, truth, scored, surface, hole), each C×H×W; images are depth / 4000 mm, or values / 255.

C is 1, or 3 for colours (``images.OPPONENT``): a model denoises each plane on its own.

Frames are pure functions of (seed, epoch, index), so that a resumed run sees the same data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.images import PEAK_M, BadImage, load_image, load_scaled
from spen.tasks.denoising.metrics import surface_mask
from spen.tasks.denoising.noise import Noise
from spen.tasks.denoising.regimes import STRENGTH_30DB_ROOMS
from spen.tasks.denoising.rooms.scenes import SPLITS, room_frame
from spen.tasks.denoising.sensor import Sensor
from spen.tasks.denoising.simulate import draw_correlated, draw_levels, noisy

CLEAN_UNITS_PER_MM = 2.0
"""The prepared 7-Scenes frames store truth in half millimetres."""


class Frame(NamedTuple):
    """One image, or a batch of them; masks are bool."""

    noisy: Tensor  # (C, H, W) float32, 0 where there is no reading
    valid: Tensor  # (C, H, W) there is a reading
    truth: Tensor  # (C, H, W) float32, 0 where it is not known
    scored: Tensor  # (C, H, W) valid and truth is known
    surface: Tensor  # (C, H, W) scored, away from depth edges and missing readings
    hole: Tensor  # (C, H, W) not valid, and truth is known


class Frames(ABC):
    """Frames by index, read when they are needed."""

    names: Sequence[str]
    sizes: Sequence[tuple[int, int]] | None = None
    """(height, width) of every frame, where it is known without reading the frames."""

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def frame(self, index: int, epoch: int = 0) -> Frame:
        """Each epoch draws simulated noise anew; real noise is the same in all."""


class Truths(Protocol):
    """Images without noise."""

    @property
    def names(self) -> Sequence[str]: ...

    def truth(self, index: int) -> Tensor:  # (C, H, W); depth in metres, 0 where it is not known
        ...


def depth_frame(noisy_m: Tensor, valid: Tensor, truth_m: Tensor) -> Frame:  # each (1, H, W), metres
    """The frame of a depth reading and its truth, with the masks of the benchmark."""
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
    """The frame of an image that is no depth map: its truth is known everywhere, and it has no depth edges."""
    every = torch.ones(1, 1, 1, dtype=torch.bool).expand_as(truth) if valid is None else valid  # takes no memory
    return Frame(torch.where(every, noisy, 0.0), every, truth, every, every, ~every)


def generator_of(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator whose seed is a hash of the key."""
    # SeedSequence mixes the key, so that neighbouring seeds, epochs and indices have unrelated streams.
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


class Subset(Frames):
    """Some frames of a set."""

    def __init__(self, frames: Frames, indices: Sequence[int]) -> None:
        self.frames, self.indices = frames, indices
        self.names = [frames.names[i] for i in indices]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        return self.frames.frame(self.indices[index], epoch)


class DepthPairs(Frames):
    """Frame pairs `NNNNNN.raw.png` (mm) and `NNNNNN.clean.png` (half mm) of `folder/split`, both 16-bit, one size."""

    def __init__(self, folder: str | Path, split: str, every: int = 1) -> None:
        self.folder = Path(folder) / split
        if not self.folder.is_dir():
            raise BadImage(f"{self.folder}: there is no such folder; frame pairs are in {', '.join(SPLITS)}")
        raw, clean = (
            {path.name.split(".")[0] for path in self.folder.glob(f"*.{kind}.png")} for kind in ("raw", "clean")
        )
        for lone, have, need in ((raw - clean, "raw", "clean"), (clean - raw, "clean", "raw")):
            if lone:
                first = min(lone)
                raise BadImage(f"{self.folder / f'{first}.{have}.png'}: its pair {first}.{need}.png is missing")
        if not raw:
            raise BadImage(f"{self.folder}: holds no frame pair (NNNNNN.raw.png and NNNNNN.clean.png)")
        self.names = sorted(raw)[::every]
        self._shape: tuple[int, ...] | None = None

    def _load(self, index: int, kind: str) -> NDArray[np.generic]:
        path = self.folder / f"{self.names[index]}.{kind}.png"
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


class Rooms(Frames):
    """Built-in rooms seen through the sensor model; needs no download."""

    def __init__(self, split: str, count: int, seed: int = 0, sensor: Sensor | None = None) -> None:
        if count < 1:
            raise ValueError(f"count is {count} but there must be at least one frame")
        if split not in SPLITS:
            raise ValueError(f"split is {split!r} but must be one of {', '.join(SPLITS)}")
        self.split, self.seed = split, seed
        self.names = [f"{split}-{index:06d}" for index in range(count)]
        self.sensor = sensor if sensor is not None else Sensor(STRENGTH_30DB_ROOMS)

    def truth(self, index: int) -> Tensor:  # (1, H, W) metres
        return torch.from_numpy(room_frame(self.split, index, self.seed))[None]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.truth(index)
        return depth_frame(*self.sensor(truth, generator_of(self.seed, SPLITS.index(self.split), epoch, index)), truth)


class Images:
    """The images of files, as truth: grey as one plane, colours as three."""

    def __init__(self, paths: Sequence[Path], peak: float | None = None, *, depth: bool = False, colour: bool = False):
        self.paths, self.peak, self.depth, self.colour = paths, peak, depth, colour
        self.names = [path.name for path in paths]

    def truth(self, index: int) -> Tensor:  # (C, H, W), depth in metres
        image = load_scaled(self.paths[index], self.peak, depth=self.depth)
        planes = (image.in_colour() if self.colour else image).tensor()
        return PEAK_M * planes if self.depth else planes


class Simulated(Frames):
    """Images without noise, noise added: new noise in every epoch, and a level of its own for every image."""

    def __init__(self, truths: Truths, noise: Noise, seed: int = 0, purpose: int = 3) -> None:
        self.truths, self.noise, self.seed, self.purpose = truths, noise, seed, purpose
        self.names = truths.names

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.truths.truth(index)
        generator = generator_of(self.seed, self.purpose, epoch, index)
        level = draw_levels(self.noise, 1, generator)
        if self.noise.kind == "depth-sensor":
            correlated = draw_correlated(self.noise, 1, generator)
            return depth_frame(*Sensor(float(level))(truth, generator, correlated=correlated), truth)
        return image_frame(noisy(self.noise, truth[None], level, generator)[0], truth)
