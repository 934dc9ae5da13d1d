"""Denoise image files: any size, grey or colour, 8-bit, 16-bit or float, keeping bit depth and units."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.energy import Observation, Observed, with_noise
from spen.tasks.denoising.images import WRITTEN_SUFFIXES, BadImage, LoadedImage, list_images, load_scaled, save_image
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import noise_estimate
from spen.tasks.denoising.regimes import Holes
from spen.tasks.simple import check_targets

LEAST = 16
"""Pixels a side that every system accepts; a smaller image is padded, and the prediction cut to its size."""

WHOLE, TILE, MARGIN = 1024 * 1024, 768, 64
"""Images of more than ``WHOLE`` pixels are denoised in tiles of ``TILE`` pixels a side, with a margin around each."""


def tiled(denoise: Denoise) -> Denoise:
    """The same function for images of any size, in bounded memory: each tile sees ``MARGIN`` pixels around it."""

    def in_tiles(x: Observed) -> Tensor:
        height, width = x.image.shape[-2:]
        if height * width <= WHOLE:
            return denoise(x)
        y = torch.empty_like(x.image)
        for top in range(0, height, TILE):
            for left in range(0, width, TILE):
                low, right = min(top + TILE, height), min(left + TILE, width)
                rows = slice(max(0, top - MARGIN), min(height, low + MARGIN))
                columns = slice(max(0, left - MARGIN), min(width, right + MARGIN))
                part = type(x)(x.image[..., rows, columns], x.seen[..., rows, columns], *x[2:])
                inner = denoise(part)[..., top - rows.start :, left - columns.start :]
                y[..., top:low, left:right] = inner[..., : low - top, : right - left]
        return y

    return in_tiles


def averaged(denoise: Denoise, turns: int) -> Denoise:
    """The mean of the answers for ``turns`` copies of the image: 2 are mirrored, 4 upside down too, 8 also transposed.

    Errors differ from copy to copy, so that their mean is smaller; the time grows with the copies.
    """
    if turns not in (1, 2, 4, 8):
        raise ValueError(f"turns is 1, 2, 4 or 8 copies of the image, not {turns}")
    if turns == 1:
        return denoise

    def turned(image: Tensor, copy: int) -> Tensor:
        image = image.flip([axis for axis, bit in ((-1, 1), (-2, 2)) if copy & bit])
        return image.transpose(-1, -2) if copy & 4 else image

    def turned_back(image: Tensor, copy: int) -> Tensor:
        return turned(image.transpose(-1, -2) if copy & 4 else image, copy & 3)

    def mean(x: Observed) -> Tensor:
        copies = (type(x)(*(turned(part, copy).contiguous() for part in x)) for copy in range(turns))
        answers = [turned_back(denoise(x), copy) for copy, x in enumerate(copies)]
        return torch.stack(answers).mean(0)

    return mean


@dataclass(frozen=True)
class FileDenoiser:
    """How files are denoised. ``kind`` is that of the noise whose level the model reads, ``noise`` a known level."""

    denoise_planes: Denoise
    kind: Kind | None = None
    noise: float | None = None
    peak: float | None = None
    holes: Holes = "auto"
    batch: int = 1
    depth: bool = False  # whether the model is for depth maps
    name: str = "this model"

    def images(self, images: list[LoadedImage]) -> list[LoadedImage]:
        """Images of one shape denoised, holes filled, in the units and the bit depth they came in."""
        height, width = images[0].values.shape[:2]
        more = (0, max(0, LEAST - width), 0, max(0, LEAST - height))  # padded with missing readings
        parts = [Observation(i.tensor()[:, None], i.valid()[:, None].float()) for i in images]
        x: Observed = Observation(*(F.pad(torch.cat(part), more) for part in zip(*parts, strict=True)))
        if self.kind is not None:
            x = with_noise(x, torch.cat([self._noise(part, self.kind).expand(len(part.image)) for part in parts]))
        answers = self.denoise_planes(x)[:, 0, :height, :width].split([len(part.image) for part in parts])
        return [image.like(answer) for image, answer in zip(images, answers, strict=True)]

    def _noise(self, x: Observation, kind: Kind) -> Tensor:  # ()
        """The noise level of an image. Of colours the plane with the least noise: the others have texture."""
        return torch.tensor(self.noise) if self.noise is not None else noise_estimate(x, kind).min()

    def warn(self, path: Path, image: LoadedImage, clean: LoadedImage) -> None:
        """Warn on stderr if the model is not meant for an image, or if its prediction is worse than the image.

        |y − x| > 2|x − y*| implies |y − y*| > |x − y*|: a prediction that is further from the input than twice the
        noise is further from the truth than the input.
        """
        photograph = image.values.ndim == 3 or image.values.dtype.name == "uint8"
        if photograph and self.depth and self.holes == "auto" and self.peak is None:
            print(
                f"{path}: {self.name} is for depth maps, and this is a photograph; take the model photo: "
                f"spen predict photo {shlex.quote(str(path))}",
                file=sys.stderr,
            )
        elif image.values.dtype == np.uint16 and image.values.ndim == 2 and not self.depth and self.peak is None:
            print(
                f"{path}: {self.name} is for photographs, and grey of 16 bits is read as depth in millimetres; take "
                f"the model depth: spen predict depth {shlex.quote(str(path))}, or give --peak 65535 for a photograph",
                file=sys.stderr,
            )
        seen = image.valid()
        moved = float((clean.tensor() - image.tensor())[seen].square().mean().sqrt())
        x = Observation(image.tensor()[:, None], seen[:, None].float())
        kind: Kind = "depth-sensor" if self.depth and not photograph else "gaussian"
        noise = float(self._noise(x, kind))
        if noise and moved > 2 * noise + 1 / image.peak:
            print(
                f"{path}: the answer is worse than the image: it differs by {moved * image.peak:.3g}, more than twice "
                f"its noise of {noise * image.peak:.3g} (of {image.peak:g}); {self._advice(photograph)}",
                file=sys.stderr,
            )

    def _advice(self, photograph: bool) -> str:
        """What to do about an answer that is worse than the image."""
        if self.kind is None:
            return f"take a model that reads the noise level: {'photo' if photograph else 'depth'}"
        return (
            f"give the noise level by {'--strength' if self.depth else '--sigma'}, or take another model of spen list"
        )

    def files(self, inputs: list[Path], out: Path) -> Iterator[Path]:
        """Denoise files and the images of folders. ``out`` is a file for one image, else a folder.

        Nothing is written if something would be overwritten. Of many images those that cannot be used are left out,
        and named in a ``BadImage`` at the end.
        """
        paths = [p for source in inputs for p in (list_images(source) if source.is_dir() else [source])]
        targets = _targets(paths, out, single=len(paths) == 1 and not inputs[0].is_dir())
        left_out: list[BadImage] = []
        loaded: list[tuple[Path, Path, LoadedImage]] = []
        for path, target in zip(paths, targets, strict=True):
            try:
                image = load_scaled(path, self.peak, self.holes, depth=self.depth)
            except BadImage as error:
                if len(paths) == 1:
                    raise
                left_out.append(error)
                continue
            if loaded and (len(loaded) == self.batch or image.values.shape != loaded[0][2].values.shape):
                yield from self._written(loaded, left_out)
                loaded = []
            loaded.append((path, target, image))
        if loaded:
            yield from self._written(loaded, left_out)
        if left_out:
            raise BadImage(f"{len(left_out)} of {len(paths)} images were left out: {'; '.join(map(str, left_out))}")

    def _written(self, loaded: list[tuple[Path, Path, LoadedImage]], left_out: list[BadImage]) -> Iterator[Path]:
        answers = self.images([image for _, _, image in loaded])
        for (path, target, image), clean in zip(loaded, answers, strict=True):
            try:
                save_image(target, clean)
            except BadImage as error:
                left_out.append(error)
                continue
            self.warn(path, image, clean)
            yield target

    def to_stdout(self, path: Path) -> Iterator[Path]:
        """Denoise one file and write the answer to stdout: PNG, or TIFF for floats."""
        if sys.stdout.isatty():
            raise ValueError("an image would be printed on the terminal; give -o FILE, or pipe it")
        image = load_scaled(path, self.peak, self.holes, depth=self.depth)
        [clean] = self.images([image])
        with tempfile.TemporaryDirectory() as folder:
            kind = "tiff" if clean.values.dtype.kind == "f" else "png"
            save_image(Path(folder) / f"answer.{kind}", clean)
            sys.stdout.buffer.write((Path(folder) / f"answer.{kind}").read_bytes())
        self.warn(path, image, clean)
        return iter(())


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
    check_targets(paths, targets)
    return targets
