"""A grey image is H×W numbers with a bit depth and a unit; both survive loading, denoising and saving.

8-bit and 16-bit PNG/TIFF, float TIFF and .npy files are read. Whatever is wrong with a file ends in one sentence
that names it (``BadImage``).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from spen.tasks.denoising.recipe_types import Holes

DEPTH_PEAK_MM = 4000.0
"""Depth images enter a model as depth / 4000 mm."""

MAX_PIXELS = 2**26
"""Larger images are refused before they are decoded: a few kilobytes of PNG can claim gigabytes of pixels."""

WRITTEN_SUFFIXES = (".png", ".tif", ".tiff", ".npy")
IMAGE_SUFFIXES = (*WRITTEN_SUFFIXES, ".bmp", ".pgm", ".jpg", ".jpeg")

_ORIENTATION = 0x0112  # the EXIF tag

# What one stands for when the caller names no peak: full scale for 8 bits, the depth range for 16 bits (the bit depth
# that depth sensors write, in millimetres), and the numbers themselves for floats.
_DEFAULT_PEAK = {"uint8": 255.0, "uint16": DEPTH_PEAK_MM}


class BadImage(ValueError):
    """A file that cannot be used as an image; the message is one sentence that names the file."""


@dataclass(frozen=True)
class GreyImage:
    """An H×W grey image in its own units: ``values / peak`` is what a model sees."""

    values: NDArray[np.generic]  # (H, W) uint8, uint16, float16, float32 or float64
    peak: float
    holes: Holes = "auto"

    def tensor(self) -> Tensor:  # (1, H, W) float32
        """values / peak, with what is not finite (a float image's way to say "no reading") as 0."""
        scaled = self.values.astype(np.float64) / self.peak
        return torch.from_numpy(np.where(np.isfinite(scaled), scaled, 0.0).astype(np.float32))[None]

    def valid(self) -> Tensor:  # (1, H, W) bool
        """Where there is a reading: finite, and not 0 where 0 stands for none."""
        seen = np.isfinite(self.values)
        if self.holes == "zero" or (self.holes == "auto" and self.values.dtype != np.uint8):
            seen &= self.values != 0
        return torch.from_numpy(seen)[None]

    def like(self, prediction: Tensor) -> GreyImage:
        """A prediction in units of the peak, brought back to this image's units and bit depth (rounded, clipped)."""
        values = prediction.detach().to("cpu", torch.float64).numpy() * self.peak
        if values.shape[-2:] != self.values.shape or values.size != self.values.size:
            raise ValueError(
                f"a prediction of shape {tuple(prediction.shape)} does not fit an image of {self.values.shape}; "
                "predict one image at a time"
            )
        values = values.reshape(self.values.shape)
        return GreyImage(as_dtype(values, self.values.dtype), self.peak)


def as_dtype(values: NDArray[np.floating], dtype: np.dtype) -> NDArray[np.generic]:
    """Floats as `dtype`: integers are rounded and clipped to their range, never wrapped."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.clip(np.rint(np.nan_to_num(values)), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)


def load_image(
    path: str | Path, peak: float | None = None, holes: Holes = "auto", *, max_pixels: int = MAX_PIXELS
) -> GreyImage:
    """Read a grey image; `peak` is the value that becomes 1 (default: 255 for 8 bits, 4000 for 16, 1 for floats).

    An image of more than `max_pixels` is refused by its header, before it is decoded.
    """
    path = Path(path)
    if not path.is_file():
        raise BadImage(f"{path}: there is no such file")
    values = _read_npy(path, max_pixels) if path.suffix.lower() == ".npy" else _read_pillow(path, max_pixels)
    if peak is None:
        peak = _DEFAULT_PEAK.get(values.dtype.name, 1.0)
    if not peak > 0:
        raise ValueError(f"peak is {peak} but must be positive: it is the pixel value that becomes 1")
    image = GreyImage(values, float(peak), holes)
    if not image.valid().any():
        raise BadImage(f"{path}: every pixel is zero, so the frame holds no reading")
    return image


def save_image(path: str | Path, image: GreyImage) -> None:
    """Write an image in its own bit depth: integers as PNG or TIFF, floats as TIFF, either as .npy."""
    path = Path(path)
    values, suffix = np.ascontiguousarray(image.values), path.suffix.lower()
    if suffix == ".npy":
        np.save(path, values, allow_pickle=False)
    elif suffix in (".tif", ".tiff"):
        # Pillow writes no 16- or 64-bit float TIFF; 32 bits is the float that every reader knows.
        Image.fromarray(values.astype(np.float32) if values.dtype.kind == "f" else values).save(path, format="TIFF")
    elif suffix == ".png" and values.dtype.name in ("uint8", "uint16"):
        Image.fromarray(values).save(path, format="PNG")
    else:
        raise BadImage(
            f"{path}: a {values.dtype.name} image cannot be written as {suffix or 'a file without a suffix'}; "
            "use .png for 8 and 16 bits, .tiff or .npy for floats"
        )


def list_images(folder: str | Path) -> list[Path]:
    """The images of a folder, by name; an error if there are none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadImage(f"{folder}: there is no such folder")
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))
    if not found:
        raise BadImage(f"{folder}: holds no image ({', '.join(IMAGE_SUFFIXES)})")
    return found


def _read_pillow(path: Path, max_pixels: int) -> NDArray[np.generic]:
    try:
        # Pillow warns about large images; the check below refuses them, so the warning would say it twice.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(path)
        with opened as image:
            _check_size(path, image.size[1], image.size[0], max_pixels)
            if getattr(image, "n_frames", 1) > 1:
                raise BadImage(f"{path}: holds {getattr(image, 'n_frames', 1)} pages; save the one to use on its own")
            if (turned := image.getexif().get(_ORIENTATION, 1)) != 1:
                raise BadImage(f"{path}: is stored turned or mirrored (orientation {turned}); save it upright first")
            mode, form = image.mode, image.format
            image.load()
            values = np.asarray(image)
    except BadImage:
        raise
    except Image.DecompressionBombError:
        raise BadImage(f"{path}: claims more than the {max_pixels} pixels allowed; crop or shrink it first") from None
    except Image.UnidentifiedImageError:
        raise BadImage(f"{path}: is not an image of a known format") from None
    except Exception as error:  # a damaged file raises anything from OSError to struct.error, by format and by place
        raise BadImage(f"{path}: is damaged or cut short ({error})") from None
    if mode == "L" or mode == "F":
        return values.copy()
    if mode.startswith("I;16"):
        return values.astype(np.uint16)
    # Older readers give 16-bit PNG as 32-bit integers, which PNG itself does not have.
    if mode == "I" and form == "PNG":
        return values.astype(np.uint16)
    raise BadImage(f"{path}: has pixels of type {mode}, but a grey image of 8 bits, 16 bits or floats is needed")


def _read_npy(path: Path, max_pixels: int) -> NDArray[np.generic]:
    try:
        # The memory map checks the header's claim against the file's length before anything is allocated.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise BadImage(f"{path}: is not a numpy array, or is cut short ({error})") from None
    if mapped.ndim != 2 or mapped.dtype.name not in ("uint8", "uint16", "float16", "float32", "float64"):
        raise BadImage(
            f"{path}: holds a {mapped.dtype.name} array of shape {mapped.shape}, "
            "but a grey image (H, W) of 8 bits, 16 bits or floats is needed"
        )
    height, width = mapped.shape
    _check_size(path, height, width, max_pixels)
    return np.array(mapped)


def _check_size(path: Path, height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise BadImage(f"{path}: claims {width}×{height} pixels, more than the {max_pixels} allowed; crop or shrink it")
    if height * width == 0:
        raise BadImage(f"{path}: has no pixels")
