"""The frames of data sets: three splits each. Splits of named data sets share no scene, or no moment of one."""

from __future__ import annotations

from typing import NamedTuple

from spen.tasks.denoising.data import DepthPairs, Frames, Images, Rooms, Simulated, Subset
from spen.tasks.denoising.folder import FEWEST, open_parts
from spen.tasks.denoising.images import BadImage, list_images
from spen.tasks.denoising.leaves import Leaves
from spen.tasks.denoising.noise import Noise
from spen.tasks.denoising.regimes import Regime
from spen.tasks.locations import find_data


class Splits(NamedTuple):
    """Three sets of frames."""

    train: Frames
    dev: Frames
    test: Frames


def open_splits(regime: Regime, *, quick: bool = False) -> Splits:
    """The frames of a data set; ``quick`` takes a few of them, for a demonstration."""
    splits: Splits = globals()[regime.opens](regime, quick)
    return splits


def open_rooms(regime: Regime, quick: bool) -> Splits:
    """Built-in rooms, read by the simulated sensor."""
    counts = (24, 4, 6) if quick else (200, 40, 100)
    rooms = (Rooms(split, n) for split, n in zip(Splits._fields, counts, strict=True))
    return Splits(*(Simulated(r, _noise(regime), purpose=k) for k, r in enumerate(rooms)))


def open_redkitchen(regime: Regime, quick: bool) -> Splits:
    """RedKitchen as the sensor saw it."""
    return Splits(*_kitchen(quick))


def _kitchen(quick: bool) -> list[DepthPairs]:
    every = (8, 8, 20) if quick else (1, 2, 1)
    folder = find_data("denoising", "redkitchen")
    return [DepthPairs(folder, s, every=e) for s, e in zip(Splits._fields, every, strict=True)]


def open_half(regime: Regime, quick: bool) -> Splits:
    """The first half of RedKitchen's training frames, scored on its development frames.

    Development frames follow training frames by three seconds: what fits them well may fit the room alone. The first
    half lies as far from them as the test split from all of it.
    """
    train, dev, _ = _kitchen(quick)
    return Splits(Subset(train, range(len(train) // 2)), dev, dev)


def open_simulated(regime: Regime, quick: bool) -> Splits:
    """RedKitchen's geometry, read by the simulated sensor."""
    return Splits(*(Simulated(pairs, _noise(regime), seed=k) for k, pairs in enumerate(_kitchen(quick))))


def open_grey(regime: Regime, quick: bool) -> Splits:
    """Grey images with Gaussian noise. Every twentieth training image is for development; set12 is the test set."""
    folders = [find_data("denoising", name) for name in ("train400", "set12")]
    images, test = (
        Simulated(Images(list_images(folder)), _noise(regime), seed=k, purpose=4) for k, folder in enumerate(folders)
    )
    used = [i for i in range(len(images)) if i % 20]
    return Splits(Subset(images, used[:: 8 if quick else 1]), Subset(images, range(0, len(images), 20)), test)


def open_leaves(regime: Regime, quick: bool) -> Splits:
    """Procedural images."""
    counts = (24, 4, 6) if quick else (400, 10, 20)
    return Splits(*(Simulated(Leaves(n, seed=k), _noise(regime), seed=k) for k, n in enumerate(counts)))


def open_folder(regime: Regime, quick: bool) -> Splits:
    """The images of a folder."""
    parts, chosen = open_parts(regime)
    if not chosen and len(parts["all"]) < FEWEST:
        raise BadImage(
            f"{regime.folder}: holds {len(parts['all'])} images; training needs {FEWEST} or more, one for each split"
        )
    return Splits(*(parts[name] for name in Splits._fields))


def _noise(regime: Regime) -> Noise:
    if regime.noise is None:
        raise BadImage(f"{regime.name} needs noise to add; give it by --noise")
    return regime.noise
