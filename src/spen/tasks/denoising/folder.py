"""A folder of images as three splits: pairs of noisy and clean images, or clean images to which noise is added.

Pairs are NAME.noisy.png and NAME.clean.png, or equal names in the subfolders noisy/ and clean/. Splits are the
subfolders train/, dev/ and test/, or the names in train.txt, dev.txt and test.txt, or shares of 80, 10 and 10 % drawn
with a seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from spen.tasks.denoising.data import Frame, Frames, Images, Simulated, Subset, depth_frame, image_frame
from spen.tasks.denoising.images import IMAGE_SUFFIXES, PEAK_M, BadImage, LoadedImage, load_image, load_scaled
from spen.tasks.denoising.regimes import Regime

PARTS = ("train", "dev", "test")
FEWEST = 3
_SHARES = (0.8, 0.1)  # of training and of development; the rest is for the last figure


class Item(NamedTuple):
    """An image: its file without noise, and the one with noise if there is one."""

    name: str
    clean: Path
    noisy: Path | None


class Pairs(Frames):
    """Frames of pairs of files."""

    def __init__(self, items: Sequence[Item], regime: Regime, *, colour: bool) -> None:
        self.items, self.regime, self.colour = items, regime, colour
        self.names = [item.name for item in items]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        item = self.items[index]
        assert item.noisy is not None
        noisy, clean = (self._load(path) for path in (item.noisy, item.clean))
        if self.regime.depth:
            return depth_frame(PEAK_M * noisy.tensor(), noisy.valid(), PEAK_M * clean.tensor())
        known = noisy.valid() & clean.valid()
        return image_frame(noisy.tensor(), clean.tensor(), None if bool(known.all()) else known)

    def _load(self, path: Path) -> LoadedImage:
        image = load_scaled(path, self.regime.peak, self.regime.holes, depth=self.regime.depth)
        return image.in_colour() if self.colour else image


@lru_cache(maxsize=100_000)
def _shape(path: Path) -> tuple[int, ...]:
    """Of the pixels of a file that can be read whole."""
    return load_image(path, 1.0).values.shape


def open_parts(regime: Regime) -> tuple[dict[str, Frames], bool]:
    """Frames by split, all of them under ``all``; and whether the folder itself defines the splits.

    Prints to stderr what was read, and what was left out and why.
    """
    folder = Path(regime.folder)
    if not folder.is_dir():
        raise BadImage(f"{folder}: there is no such folder; give the folder of the images by --data")
    left_out: list[str] = []
    missing = [part for part in ("train", "test") if not (folder / part).is_dir()]
    if len(missing) == 1 and not any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir()):
        other = "test" if missing == ["train"] else "train"
        raise BadImage(
            f"{folder}: has a folder {other}/ and no {missing[0]}/; add it, or put all images into one folder, which "
            "is then divided"
        )
    if not missing:
        found = {part: folder / part for part in PARTS if (folder / part).is_dir()}
        parts = {part: _usable(_items(path, left_out), left_out) for part, path in found.items()}
        chosen, how = True, "subfolders"
    else:
        items = _usable(_items(folder, left_out), left_out)
        listed = {part: folder / f"{part}.txt" for part in PARTS if (folder / f"{part}.txt").is_file()}
        chosen, how = bool(listed), "lists" if listed else f"shares, seed {regime.split_seed}"
        parts = _listed(items, listed) if listed else _shared(items, regime.split_seed)
    if "dev" not in parts:  # the last tenth of training images is held out
        cut = max(1, len(parts["train"]) // 10)
        parts["dev"], parts["train"] = parts["train"][-cut:], parts["train"][:-cut] or parts["train"]
    every = list(dict.fromkeys(item for items in parts.values() for item in items))
    if regime.noise is None and any(item.noisy is None for item in every):
        raise BadImage(f"{folder}: holds clean images and no pairs; say what noise to add, as --noise gaussian:25")
    colour = any(len(_shape(path)) == 3 for item in every for path in (item.clean, item.noisy) if path)
    if regime.depth and colour:
        raise BadImage(
            f"{folder}: holds colour images, and depth maps have one channel; convert them, or take another noise"
        )
    splits = {part: _frames(items, regime, k, colour=colour) for k, (part, items) in enumerate(parts.items())}
    splits["all"] = _frames(every, regime, 2, colour=colour)
    counts = ", ".join(f"{len(splits[part])} {part}" for part in PARTS)
    print(f"{folder}: {len(every)} images ({counts}; by {how})", file=sys.stderr)
    if regime.noise is not None and any(item.noisy is not None for item in every):
        print(f"{folder}: the noisy images are not used: --noise adds noise to the clean ones", file=sys.stderr)
    if left_out:
        shown = "; ".join(left_out[:5]) + (f"; and {len(left_out) - 5} more" if len(left_out) > 5 else "")
        print(f"{folder}: {len(left_out)} left out: {shown}", file=sys.stderr)
    return splits, chosen


def _frames(items: Sequence[Item], regime: Regime, seed: int, *, colour: bool) -> Frames:
    frames: Frames
    if regime.noise is None:
        frames = Pairs(items, regime, colour=colour)
    else:
        truths = Images([item.clean for item in items], regime.peak, depth=regime.depth, colour=colour)
        frames = Simulated(truths, regime.noise, seed)
    frames.sizes = [(shape[0], shape[1]) for shape in (_shape(item.clean) for item in items)]
    return frames


def _usable(items: Sequence[Item], left_out: list[str]) -> list[Item]:
    """Those whose files can be read and have one size."""
    used = []
    for item in items:
        try:
            shapes = [_shape(path) for path in (item.clean, item.noisy) if path]
        except BadImage as error:
            left_out.append(str(error))
            continue
        if len({shape[:2] for shape in shapes}) > 1:
            size, other = (f"{shape[1]}×{shape[0]}" for shape in shapes)
            left_out.append(f"{item.name}: its clean image is {size} and its noisy one {other}")
            continue
        used.append(item)
    if not used:
        raise BadImage(f"none of {len(items)} images can be used: {left_out[-1]}; replace them")
    return used


def _items(folder: Path, left_out: list[str]) -> list[Item]:
    """The images of one folder, by name."""
    places = {kind: folder / kind for kind in ("clean", "noisy")}
    found: dict[str, dict[str, Path]] = {}
    plain: list[Path] = []
    if all(place.is_dir() for place in places.values()):
        found = {kind: {path.name: path for path in _files(place, left_out)} for kind, place in places.items()}
    else:
        places = dict.fromkeys(places, folder)
        found = {kind: {} for kind in places}
        for path in _files(folder, left_out):
            stem, _, kind = path.stem.rpartition(".")
            if stem and kind in found:
                found[kind][stem] = path
            else:
                plain.append(path)
    clean, noisy = found["clean"], found["noisy"]
    if clean or noisy:
        for have, lack, kind in ((noisy, clean, "clean"), (clean, noisy, "noisy")):
            if lone := sorted(set(have) - set(lack)):
                others = f", nor have {len(lone) - 1} others" if len(lone) > 1 else ""
                raise BadImage(
                    f"{have[lone[0]]}: has no {kind} partner in {places[kind]}{others}; add it or take the image away"
                )
        left_out += [f"{path.name}: is no part of a pair" for path in plain]
        return [Item(name, clean[name], noisy[name]) for name in sorted(clean)]
    if not plain:
        raise BadImage(
            f"{folder}: holds no image; put images there ({', '.join(IMAGE_SUFFIXES)}), or pairs NAME.noisy.png and "
            "NAME.clean.png, or subfolders noisy and clean"
        )
    return [Item(path.name, path, None) for path in plain]


def _files(folder: Path, left_out: list[str]) -> list[Path]:
    lists = {f"{part}.txt" for part in PARTS}
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    left_out += [f"{path.name}: is no image" for path in files if path not in images and path.name not in lists]
    return images


def _listed(items: Sequence[Item], lists: dict[str, Path]) -> dict[str, list[Item]]:
    known = {key: item for item in items for key in (item.name, item.clean.name, item.clean.stem)}
    parts: dict[str, list[Item]] = {}
    for part in ("train", "test"):
        if part not in lists:
            raise BadImage(f"{next(iter(lists.values())).parent}: has no {part}.txt; train.txt and test.txt are needed")
    for part, path in lists.items():
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if missing := [name for name in names if name not in known]:
            raise BadImage(
                f"{path}: names {missing[0]!r}, and there is no such image in {path.parent}; correct the list"
            )
        parts[part] = [known[name] for name in names]
        if not names:
            raise BadImage(f"{path}: names no image; write one name a line")
    named: dict[str, str] = {}
    for part, chosen in parts.items():
        for item in chosen:
            if (other := named.setdefault(item.name, part)) != part:
                raise BadImage(f"{lists[part]}: names {item.name!r}, and so does {other}.txt; keep it in one list")
    return parts


def _shared(items: Sequence[Item], seed: int) -> dict[str, list[Item]]:
    """Shares drawn by name, so that they do not depend on the order of a folder."""
    order = sorted(items, key=lambda item: item.name)
    random.Random(seed).shuffle(order)
    if len(order) < FEWEST:  # enough to score, not to train
        return {"train": order, "dev": order, "test": order}
    train, dev = max(1, int(_SHARES[0] * len(order))), max(1, round(_SHARES[1] * len(order)))
    train = min(train, len(order) - 1 - dev)
    return {"train": order[:train], "dev": order[train : train + dev], "test": order[train + dev :]}


def large_enough(frames: Frames, crop: tuple[int, int]) -> Frames:
    """The frames that a crop fits in; the others are named on stderr. Frames of unknown sizes are all taken."""
    if frames.sizes is None:
        return frames
    small = [index for index, size in enumerate(frames.sizes) if size[0] < crop[0] or size[1] < crop[1]]
    wanted = f"{crop[1]}×{crop[0]}"
    if len(small) == len(frames):
        height, width = max(frames.sizes)
        raise BadImage(
            f"no image is as large as a crop of {wanted}; the largest is {width}×{height}: "
            f"give a smaller one, as --set crop={min(height, crop[0])}x{min(width, crop[1])}"
        )
    if not small:
        return frames
    shown = ", ".join(frames.names[index] for index in small[:5])
    print(f"{len(small)} images are smaller than a crop of {wanted} and left out: {shown}", file=sys.stderr)
    return Subset(frames, sorted(set(range(len(frames))) - set(small)))
