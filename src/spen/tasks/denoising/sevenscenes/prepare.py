"""raw = what the sensor gave, clean = ray-cast fusion + G∗(raw − clean): frame pairs from 7-Scenes as downloaded.

A scene holds `seq-NN/frame-NNNNNN.depth.png` (640×480, mm, 65535 = invalid) and `.pose.txt` (4×4 camera to world), and
`TrainSplit.txt` / `TestSplit.txt` with lines such as `sequence1`. The prepared form is what `data.DepthPairs` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from spen.tasks.denoising.data import CLEAN_UNITS_PER_MM
from spen.tasks.denoising.images import BadImage, LoadedImage, load_image, save_image
from spen.tasks.denoising.sevenscenes.download import downloads
from spen.tasks.denoising.sevenscenes.fusion import Pinhole, View, fuse
from spen.tasks.locations import cache_folder
from spen.tasks.options import resolve_device
from spen.tasks.task import Progress

KINECT = Pinhole(focal=585.0, cu=320.0, cv=240.0, height=480, width=640)
"""The intrinsics that the data set's authors give for its depth camera."""

INVALID = 65535
SLOW_PX = 16.0
"""Width of the Gaussian that separates miscalibration (slow in the image) from noise."""

TRUTH_MM = 50.0
"""Where raw and clean still differ by this much or more, the truth counts as unknown."""

DEV_SHARE, DEV_GAP = 0.15, 80
"""7-Scenes has no development split: it is the end of the training frames, after a gap that keeps views apart."""


@dataclass(frozen=True)
class Shot:
    """One frame on disk."""

    sequence: int
    number: int
    depth: Path
    pose: Path

    @property
    def name(self) -> str:
        """NNNNNN of the prepared form: two digits of sequence, four of frame."""
        return f"{self.sequence:02d}{self.number:04d}"


@dataclass(frozen=True)
class Views:
    """The views of some shots, read in every iteration: a scene does not fit in memory."""

    shots: Sequence[Shot]
    device: str
    camera: Pinhole
    far: float
    watch: Progress

    def __iter__(self) -> Iterator[View]:
        for shot in self.watch(self.shots, len(self.shots), "fusing"):
            depth = torch.from_numpy(read_depth(shot.depth, self.camera).astype(np.float32) / 1000)
            # Far readings are too noisy to help, and a block table that reaches to them is large.
            depth = torch.where(depth > self.far, 0.0, depth)
            yield View(depth.to(self.device), read_pose(shot.pose).to(self.device))


def read_depth(path: Path, camera: Pinhole = KINECT) -> NDArray[np.uint16]:  # (480, 640) mm, 0 = no reading
    """A depth frame as downloaded, with 0 for both of its marks of a missing reading (0 and 65535)."""
    values = load_image(path).values
    if values.dtype != np.uint16:
        raise BadImage(f"{path}: has {values.dtype.itemsize * 8} bits a pixel, but depth frames have 16")
    if values.shape != (camera.height, camera.width):
        need = f"{camera.width}×{camera.height}"
        raise BadImage(f"{path}: is {values.shape[1]}×{values.shape[0]}, but the camera gives {need}")
    return np.where(values == INVALID, 0, values).astype(np.uint16)


def read_pose(path: Path) -> Tensor:  # (4, 4) float32
    """A camera-to-world matrix: four lines of four numbers."""
    try:
        pose = np.array([[float(x) for x in line.split()] for line in path.read_text().splitlines() if line.strip()])
    except (OSError, UnicodeDecodeError, ValueError):
        raise BadImage(f"{path}: is not a pose of four lines of four numbers") from None
    if pose.shape != (4, 4) or not np.isfinite(pose).all():
        raise BadImage(f"{path}: is not a pose of four lines of four numbers")
    return torch.from_numpy(pose).float()


def list_shots(folder: Path) -> list[Shot]:
    """Every frame of a scene, by sequence and number; a depth map without a pose is an error."""
    shots = []
    for sequence in sorted(folder.glob("seq-*")):
        for depth in sorted(sequence.glob("frame-*.depth.png")):
            pose = depth.with_name(depth.name.replace(".depth.png", ".pose.txt"))
            digits = re.findall(r"\d+", f"{sequence.name} {depth.name}")
            if len(digits) != 2:
                raise BadImage(f"{depth}: is not named as seq-NN/frame-NNNNNN.depth.png")
            if not pose.is_file():
                raise BadImage(f"{depth}: its pose {pose.name} is missing")
            shots.append(Shot(int(digits[0]), int(digits[1]), depth, pose))
    if not shots:
        raise BadImage(f"{folder}: holds no seq-NN/frame-NNNNNN.depth.png")
    return shots


def split_shots(folder: Path, shots: list[Shot]) -> dict[str, list[Shot]]:
    """train, dev and test: by the scene's split files where it has them, else by time with gaps.

    Without split files the first 60 % of the frames are for training and development and the last 40 % for the test.
    """
    files = [folder / name for name in ("TrainSplit.txt", "TestSplit.txt")]
    if all(file.is_file() for file in files):
        train_ids, test_ids = ({int(n) for n in re.findall(r"\d+", file.read_text())} for file in files)
        train = [shot for shot in shots if shot.sequence in train_ids]
        test = [shot for shot in shots if shot.sequence in test_ids]
        both = train_ids & test_ids
        if both:
            raise ValueError(f"{folder}: sequence {min(both)} is in both TrainSplit.txt and TestSplit.txt")
    else:
        end = int(0.6 * len(shots))
        gap = min(DEV_GAP, len(shots) // 20)
        train, test = shots[:end], shots[end + gap :]
    start = len(train) - int(DEV_SHARE * len(train))
    gap = min(DEV_GAP, start // 4)
    return {"train": train[: start - gap], "dev": train[start:], "test": test}


def align(
    raw: NDArray[np.floating],  # (H, W) mm, 0 = no reading
    clean: NDArray[np.floating],  # (H, W) mm, 0 = no surface
) -> NDArray[np.float64]:  # (H, W) mm, 0 = no truth
    """clean + G∗(raw − clean), without the pixels where the two still differ by 50 mm or more.

    The slow part is miscalibration, which no denoiser can know. It is averaged over the pixels that both have and that
    are within twice the limit, because a flying pixel says nothing about calibration.
    """
    both = (raw > 0) & (clean > 0)
    close = both & (np.abs(raw - clean) < 2 * TRUTH_MM)
    share = ndimage.gaussian_filter(close.astype(np.float64), SLOW_PX)
    slow = ndimage.gaussian_filter(np.where(close, raw - clean, 0.0), SLOW_PX) / np.maximum(share, 1e-3)
    truth = np.where(clean > 0, clean + slow, 0.0)
    return np.where(both & (np.abs(raw - truth) >= TRUTH_MM), 0.0, truth)


def make(source: Path | None, out: Path | None, *, progress: Progress, device: str = "cpu") -> dict[str, Any]:
    """`spen data make 7scenes`."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, not {device!r}")
    resolve_device(device)
    source = source or downloads() / "redkitchen"
    out = out or cache_folder() / "denoising" / source.name
    return {"folder": out, "unit": "frames", "sizes": prepare(source, out, device=device, progress=progress)}


def prepare(
    scene: str | Path,
    out: str | Path,
    *,
    voxel: float = 0.006,
    far: float = 4.0,
    device: str = "cpu",
    camera: Pinhole = KINECT,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Fuse all frames of a scene, then write `out/{train,dev,test}/NNNNNN.{raw,clean}.png`.

    Returns the number of pairs in each split. `progress(iterator, total, what)` may wrap the loops. Frames whose raw or
    clean map is empty are left out. 6 mm voxels of a room take about 1 GB; a larger voxel is faster.
    """
    scene, out = Path(scene), Path(out)
    shots = list_shots(scene)
    splits = split_shots(scene, shots)
    watch: Progress = progress if progress is not None else lambda items, total, what: iter(items)
    volume = fuse(Views(shots, device, camera, far, watch), camera, voxel)
    small, counts = camera.halved(), {}
    for split, members in splits.items():
        folder = out / split
        folder.mkdir(parents=True, exist_ok=True)
        counts[split] = 0
        for shot in watch(members, len(members), f"ray-casting {split}"):
            raw = read_depth(shot.depth, camera)[::2, ::2]
            cast = volume.raycast(read_pose(shot.pose).to(device), small, far=far + 0.5).cpu().double().numpy() * 1000
            units = np.rint(align(raw.astype(np.float64), cast) * CLEAN_UNITS_PER_MM)
            clean = np.clip(units, 0, INVALID).astype(np.uint16)
            if raw.any() and clean.any():
                save_image(folder / f"{shot.name}.raw.png", LoadedImage(np.ascontiguousarray(raw), 1.0))
                save_image(folder / f"{shot.name}.clean.png", LoadedImage(clean, 1.0))
                counts[split] += 1
    return counts
