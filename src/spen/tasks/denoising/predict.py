"""Denoise image files: any size, 8-bit, 16-bit or float, keeping bit depth and units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch.nn.functional as F

from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import (
    WRITTEN_SUFFIXES,
    BadImage,
    GreyImage,
    list_images,
    load_image,
    save_image,
)
from spen.tasks.denoising.recipe_types import Holes

LEAST = 16
"""Pixels a side that every system can work with; a smaller image is continued, and the answer cut to its size."""


def denoise_image(denoise: Denoise, image: GreyImage) -> GreyImage:
    """The image denoised, holes filled, in the units and the bit depth it came in."""
    height, width = image.values.shape
    more = (0, max(0, LEAST - width), 0, max(0, LEAST - height))  # as if the sensor had missed it
    x = Observation(F.pad(image.tensor()[None], more), F.pad(image.valid()[None].float(), more))
    return image.like(denoise(x)[0, :, :height, :width])


def denoise_files(
    denoise: Denoise, inputs: list[Path], out: Path, peak: float | None = None, holes: Holes = "auto"
) -> Iterator[Path]:
    """Denoise files and the images of folders. ``out`` is a file for one image, else a folder.

    Where something would be overwritten nothing is written. Of many images those that cannot be used are left out, and
    named in a ``BadImage`` when the others are done.
    """
    paths = [p for source in inputs for p in (list_images(source) if source.is_dir() else [source])]
    targets = _targets(paths, out, single=len(paths) == 1 and not inputs[0].is_dir())
    left_out: list[BadImage] = []
    for path, target in zip(paths, targets, strict=True):
        try:
            save_image(target, denoise_image(denoise, load_image(path, peak, holes)))
        except BadImage as error:
            if len(paths) == 1:
                raise
            left_out.append(error)
            continue
        yield target
    if left_out:
        raise BadImage(f"{len(left_out)} of {len(paths)} images were left out: {'; '.join(map(str, left_out))}")


def _targets(paths: list[Path], out: Path, *, single: bool) -> list[Path]:
    """Where each result goes: under its own name, as PNG where the format of the file cannot be written."""
    if single and out.suffix and not out.is_dir():
        if out.suffix.lower() not in WRITTEN_SUFFIXES:
            raise BadImage(f"{out}: cannot be written; name it {', '.join(WRITTEN_SUFFIXES[:-1])} or .npy")
        out.parent.mkdir(parents=True, exist_ok=True)
        targets = [out]
    else:
        out.mkdir(parents=True, exist_ok=True)
        known = [p.suffix.lower() in WRITTEN_SUFFIXES for p in paths]
        targets = [out / (p.name if ok else f"{p.stem}.png") for p, ok in zip(paths, known, strict=True)]
    given = {p.resolve(): p for p in paths}
    first: dict[Path, Path] = {}
    for path, target in zip(paths, targets, strict=True):
        if target.resolve() == path.resolve():
            raise ValueError(f"{path} would be overwritten by its own result; give another -o")
        if target.resolve() in given:
            raise ValueError(f"{given[target.resolve()]} would be overwritten by the result of {path}; give another -o")
        if target in first:
            raise ValueError(f"{first[target]} and {path} would both be written to {target}; denoise one at a time")
        first[target] = path
    return targets
