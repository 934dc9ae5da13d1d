"""A frame is (noisy, valid, truth, scored, surface, hole), each 1×H×W; images are depth / 4000 mm, or grey / 255.

Frames and crops are pure functions of (seed, epoch, index), so a run that is stopped and resumed sees the same data.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.denoising.images import DEPTH_PEAK_MM, BadImage, list_images, load_image
from spen.tasks.denoising.metrics import surface_mask
from spen.tasks.denoising.recipes import GREY_SIGMA
from spen.tasks.denoising.rooms.scenes import SPLITS, room_frame
from spen.tasks.denoising.sensor import STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_ROOMS, Sensor

PEAK_M = DEPTH_PEAK_MM / 1000
CLEAN_UNITS_PER_MM = 2.0
"""The prepared form stores truth in half millimetres."""

CROP = (96, 128)


class Frame(NamedTuple):
    """One image, or a batch of them; masks are bool."""

    noisy: Tensor  # (1, H, W) float32, 0 where the sensor saw nothing
    valid: Tensor  # (1, H, W) the sensor saw it
    truth: Tensor  # (1, H, W) float32, 0 where it is not known
    scored: Tensor  # (1, H, W) valid and truth is known
    surface: Tensor  # (1, H, W) scored, away from depth edges and missing readings
    hole: Tensor  # (1, H, W) not valid, and truth is known

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


class SimulatedSensor:
    """The truth of real frame pairs (or of rooms) seen through the sensor model in place of the real one."""

    def __init__(self, geometry: DepthPairs | Rooms, seed: int = 0, sensor: Sensor | None = None) -> None:
        self.geometry, self.seed = geometry, seed
        self.sensor = sensor if sensor is not None else Sensor(STRENGTH_30DB_REDKITCHEN)

    def __len__(self) -> int:
        return len(self.geometry)

    def name(self, index: int) -> str:
        return self.geometry.name(index)

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.geometry.truth(index)
        return depth_frame(*self.sensor(truth, generator_of(self.seed, 3, epoch, index)), truth)


class GreyImages:
    """y = x + σ·n: the grey images of a folder with Gaussian noise of standard deviation `sigma` / 255, not clipped."""

    def __init__(self, folder: str | Path, sigma: float = GREY_SIGMA, seed: int = 0) -> None:
        if sigma < 0:
            raise ValueError(f"sigma is {sigma} but must not be negative; it is in units of 1/255")
        self.paths, self.sigma, self.seed = list_images(folder), sigma, seed

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index].name

    def truth(self, index: int) -> Tensor:  # (1, H, W)
        image = load_image(self.paths[index])
        if image.values.dtype != np.uint8:
            raise BadImage(f"{self.paths[index]}: is a {image.values.dtype.name} image, but grey images have 8 bits")
        return image.tensor()

    def frame(self, index: int, epoch: int = 0) -> Frame:
        truth = self.truth(index)
        noise = torch.randn(truth.shape, generator=generator_of(self.seed, 4, epoch, index))
        every = torch.ones_like(truth, dtype=torch.bool)
        return Frame(truth + self.sigma / 255 * noise, every, truth, every, every, ~every)


def stack(frames: Frames, epoch: int = 0) -> Frame:  # each part (N, 1, H, W)
    """All frames as one batch, for sets that fit in memory; sizes must agree."""
    parts = [frames.frame(index, epoch) for index in range(len(frames))]
    for index, part in enumerate(parts):
        if part.truth.shape != parts[0].truth.shape:
            raise BadImage(
                f"{frames.name(index)}: is {_size(part)}, but {frames.name(0)} is {_size(parts[0])}; "
                "images of mixed sizes cannot be stacked"
            )
    return Frame(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _size(frame: Frame) -> str:
    return f"{frame.truth.shape[-1]}×{frame.truth.shape[-2]}"
