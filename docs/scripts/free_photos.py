"""Training images of the model ``photo``: photographs of Debian packages, reduced and cut into tiles.

    apt-get download gcompris-qt-data lomiri-wallpapers-16.04 mate-backgrounds palapeli-data
    for package in *.deb; do dpkg -x $package packages; done
    python docs/scripts/free_photos.py packages photos
    spen train photo --data photos --noise gaussian:0-55 --holes none --peak 1

The packages are free to redistribute; their licences (CC BY, CC BY-SA, GFDL, GPL, public domain) are in
`packages/usr/share/doc/*/copyright`. Tiles are .npy files of one plane: grey, or one of the three planes that a colour
image is denoised in, rounded to steps of 1/255. The brightness plane of a colour image has values up to 1.73;
without `--peak 1` such files are refused. A photograph is in one split only.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from spen.tasks.denoising.images import OPPONENT

ALBUMS = ("erase", "explore_farm_animals", "explore_monuments", "explore_world_animals", "explore_world_music")
FOLDERS = ("backgrounds/mate/nature", "backgrounds", "palapeli/collection")
SIDE = 192
LONGEST = 1000
LEAST = 360  # pixels; smaller pictures are icons
FLATTEST = 0.005  # the standard deviation of a plane; below it there is nothing to learn
SMOOTH = 0.04  # mean change from a pixel to the next, down and to the right; half of the tiles are below it
SMOOTH_KEPT = 8  # one smooth tile of so many is written: most photographs of users have more detail than wallpapers


def photographs(packages: Path) -> Iterator[Image.Image]:
    """The photographs in a fixed order."""
    for album in ALBUMS:
        data = (packages / "usr/share/gcompris-qt/rcc" / f"{album}.rcc").read_bytes()  # files one after the other
        for found in re.finditer(rb"RIFF(....)WEBP", data, re.DOTALL):
            size = 8 + int.from_bytes(found[1], "little")
            yield Image.open(io.BytesIO(data[found.start() : found.start() + size]))
    for folder in FOLDERS:
        for path in sorted((packages / "usr/share" / folder).glob("*.jpg")):
            yield Image.open(path)


def tiles(photo: Image.Image) -> Iterator[np.ndarray]:  # (SIDE or less, SIDE or less, 3) in [0, 1]
    """Half the size or less, so that neither compression nor the sensor's noise is left, and half of that again."""
    width, height = photo.size
    largest = min(0.5, LONGEST / max(width, height))
    for factor in (largest, largest / 2):
        size = (round(factor * width), round(factor * height))
        pixels = np.asarray(photo.convert("RGB").resize(size, Image.Resampling.BOX), np.float32) / 255
        for rows in _cuts(size[1]):
            for columns in _cuts(size[0]):
                yield pixels[rows, columns]


def _cuts(length: int) -> list[slice]:
    side = min(SIDE, length)
    return [slice(first, first + side) for first in np.linspace(0, length - side, max(1, length // SIDE)).astype(int)]


def roughness(grey: np.ndarray) -> float:
    """The mean change from a pixel to the next, down and to the right."""
    return float(np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean())


def planes(tile: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Grey of every tile; of every fourth its brightness among colours and one difference of colours."""
    yield tile.mean(-1)
    if count % 4 == 0:
        colours = tile @ OPPONENT.T.astype(np.float32)
        yield colours[..., 0]
        yield colours[..., 1 + count // 4 % 2]


def main(packages: str, out: str) -> None:
    """Write the folder."""
    count = 0
    for index, photo in enumerate(photographs(Path(packages))):
        if min(photo.size) < LEAST:
            continue
        split = Path(out) / {7: "dev", 27: "test"}.get(index % 40, "train")
        split.mkdir(parents=True, exist_ok=True)
        for tile in tiles(photo):
            count += 1
            if roughness(tile.mean(-1)) < SMOOTH and count % SMOOTH_KEPT:
                continue
            for k, plane in enumerate(planes(tile, count)):
                if plane.std() < FLATTEST:
                    continue
                np.save(split / f"{index:03d}-{count:05d}-{k}.npy", (np.round(255 * plane) / 255).astype(np.float16))


if __name__ == "__main__":
    main(*sys.argv[1:])
