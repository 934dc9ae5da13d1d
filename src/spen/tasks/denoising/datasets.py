"""The frames of data sets: three splits each. Those that have a name share no scene or no moment between splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spen.tasks.denoising.data import DepthPairs, Frames, Images, Rooms
from spen.tasks.denoising.folder import FEWEST, open_parts
from spen.tasks.denoising.images import BadImage, list_images
from spen.tasks.denoising.leaves import Leaves
from spen.tasks.denoising.noise import Noise
from spen.tasks.denoising.regimes import Regime
from spen.tasks.denoising.simulate import Simulated
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


def open_rooms(regime: Regime, quick: bool) -> Splits:
    """Built-in rooms, read by the simulated sensor."""
    counts = (24, 4, 6) if quick else (200, 40, 100)
    rooms = (Rooms(split, n) for split, n in zip(SPLIT_NAMES, counts, strict=True))
    return Splits(*(Simulated(r, _noise(regime), purpose=k) for k, r in enumerate(rooms)))


def open_redkitchen(regime: Regime, quick: bool) -> Splits:
    """RedKitchen as the sensor saw it."""
    return Splits(*_kitchen(quick))


def _kitchen(quick: bool) -> list[DepthPairs]:
    every = (8, 8, 20) if quick else (1, 2, 1)
    folder = find_data("denoising", "redkitchen")
    return [DepthPairs(folder, s, every=e) for s, e in zip(SPLIT_NAMES, every, strict=True)]


def open_half(regime: Regime, quick: bool) -> Splits:
    """The first half of RedKitchen's training frames, scored on its development frames.

    Development frames follow training frames by three seconds: what fits them well may fit the room alone. The first
    half lies as far from them as the test split from all of it.
    """
    whole = open_redkitchen(regime, quick)
    half = Subset(whole.train, list(range(len(whole.train) // 2)))
    return Splits(half, whole.dev, whole.dev)


def open_simulated(regime: Regime, quick: bool) -> Splits:
    """RedKitchen's geometry, read by the simulated sensor."""
    return Splits(*(Simulated(pairs, _noise(regime), seed=k) for k, pairs in enumerate(_kitchen(quick))))


def open_grey(regime: Regime, quick: bool) -> Splits:
    """Grey images with Gaussian noise. Every twentieth training image is held out; set12 is for the last figure."""
    folders = [find_data("denoising", name) for name in ("train400", "set12")]
    images, test = (
        Simulated(Images(list_images(folder)), _noise(regime), seed=k, purpose=4) for k, folder in enumerate(folders)
    )
    used = [i for i in range(len(images)) if i % 20]
    held_out = [i for i in range(len(images)) if not i % 20]
    return Splits(Subset(images, used[:: 8 if quick else 1]), Subset(images, held_out), test)


def open_leaves(regime: Regime, quick: bool) -> Splits:
    """Procedural images."""
    counts = (24, 4, 6) if quick else (400, 10, 20)
    leaves = (Leaves(count, seed=k) for k, count in enumerate(counts))
    return Splits(*(Simulated(images, _noise(regime), seed=k) for k, images in enumerate(leaves)))


def open_folder(regime: Regime, quick: bool) -> Splits:
    """The images of a folder."""
    parts, chosen = open_parts(regime)
    if not chosen and len(parts["all"]) < FEWEST:
        raise BadImage(
            f"{regime.folder}: holds {len(parts['all'])} images; training needs {FEWEST} or more, one for each split"
        )
    return Splits(*(parts[name] for name in SPLIT_NAMES))


def _noise(regime: Regime) -> Noise:
    if regime.noise is None:
        raise BadImage(f"{regime.name} needs noise to add; give it by --noise")
    return regime.noise
