"""The frames of the data sets that have a name: three splits each, which share no scene or no moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spen.tasks.denoising.data import DepthPairs, Frames, GreyImages, Rooms, SimulatedSensor
from spen.tasks.locations import find_data

SPLIT_NAMES = ("train", "dev", "test")


@dataclass(frozen=True)
class Splits:
    """Three sets of frames."""

    train: Frames
    dev: Frames
    test: Frames


class Subset:
    """Some frames of a set."""

    def __init__(self, frames: Frames, indices: list[int]) -> None:
        self.frames, self.indices = frames, indices

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.frames.name(self.indices[index])

    def frame(self, index: int, epoch: int = 0) -> Any:
        return self.frames.frame(self.indices[index], epoch)


def open_rooms(quick: bool) -> Splits:
    """Built-in rooms, read by the simulated sensor."""
    counts = (24, 4, 6) if quick else (200, 40, 100)
    return Splits(*(Rooms(split, n) for split, n in zip(SPLIT_NAMES, counts, strict=True)))


def open_redkitchen(quick: bool) -> Splits:
    """RedKitchen as the sensor saw it."""
    return Splits(*_kitchen(quick))


def _kitchen(quick: bool) -> list[DepthPairs]:
    every = (8, 8, 20) if quick else (1, 2, 1)
    folder = find_data("denoising", "redkitchen")
    return [DepthPairs(folder, s, every=e) for s, e in zip(SPLIT_NAMES, every, strict=True)]


def open_half(quick: bool) -> Splits:
    """The first half of RedKitchen's training frames, scored on its development frames.

    Development frames follow training frames by three seconds: what fits them well may fit the room alone. The first
    half lies as far from them as the test split from all of it.
    """
    whole = open_redkitchen(quick)
    half = Subset(whole.train, list(range(len(whole.train) // 2)))
    return Splits(half, whole.dev, whole.dev)


def open_simulated(quick: bool) -> Splits:
    """RedKitchen's geometry, read by the simulated sensor."""
    return Splits(*(SimulatedSensor(pairs, seed=k) for k, pairs in enumerate(_kitchen(quick))))


def open_grey(quick: bool) -> Splits:
    """Grey images with Gaussian noise. Every twentieth training image is held out; set12 is for the last figure."""
    images = GreyImages(find_data("denoising", "train400"))
    used = [i for i in range(len(images)) if i % 20]
    held_out = [i for i in range(len(images)) if not i % 20]
    test = GreyImages(find_data("denoising", "set12"), seed=1)
    return Splits(Subset(images, used[:: 8 if quick else 1]), Subset(images, held_out), test)
