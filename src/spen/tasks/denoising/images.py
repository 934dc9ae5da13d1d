"""An image is H×W or H×W×3 numbers with a bit depth and a unit; both survive loading, denoising and saving.

PNG, JPEG, TIFF, BMP, PGM and .npy files are read: grey of 8 bits, 16 bits or floats, colour of 8 bits, and in .npy
files colour of every kind. Palettes become colours, one bit becomes black and white of 8 bits, transparency is kept
and written again. Every error is a ``BadImage`` that names the file in one sentence.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from spen.tasks.denoising.regimes import Holes

DEPTH_PEAK_MM = 4000.0
"""Depth images enter a model as depth / 4000 mm."""
PEAK_M = DEPTH_PEAK_MM / 1000

MAX_PIXELS = 2**26
"""Larger images are refused before they are decoded: a few kilobytes of PNG can claim gigabytes of pixels."""

WRITTEN_SUFFIXES = (".png", ".tif", ".tiff", ".npy")
IMAGE_SUFFIXES = (*WRITTEN_SUFFIXES, ".bmp", ".pgm", ".jpg", ".jpeg")

_ORIENTATION = 0x0112  # the EXIF tag

OPPONENT = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
"""Red, green and blue to brightness and two differences of colours. The matrix is orthogonal: noise that is white and
equal in the three colours stays so, and squared errors are those of the colours."""

# The default peak: full scale for 8 bits, the depth range for 16 bits (the bit depth
# that depth sensors write, in millimetres), and the numbers themselves for floats.
_DEFAULT_PEAK = {"uint8": 255.0, "uint16": DEPTH_PEAK_MM}


class BadImage(ValueError):
    """A file that cannot be used as an image; the message is one sentence that names the file."""


@dataclass(frozen=True)
class LoadedImage:
    """An image in its own units: ``values / peak`` is what a model sees, colours as three planes (``OPPONENT``)."""

    values: NDArray[np.generic]  # (H, W) or (H, W, 3): uint8, uint16, float16, float32 or float64
    peak: float
    holes: Holes = "auto"
    alpha: NDArray[np.generic] | None = None  # (H, W); it is not denoised

    def tensor(self) -> Tensor:  # (C, H, W) float32
        """values / peak, with 0 for what is not finite (no reading in a float image)."""
        scaled = self.values.astype(np.float64) / self.peak
        scaled = np.where(np.isfinite(scaled), scaled, 0.0)
        planes = np.einsum("kc,hwc->khw", OPPONENT, scaled) if scaled.ndim == 3 else scaled[None]
        return torch.from_numpy(planes.astype(np.float32))

    def valid(self) -> Tensor:  # (C, H, W) bool
        """Where there is a reading: finite, and not 0 where 0 stands for none; a colour is known whole or not."""
        seen = np.isfinite(self.values)
        if self.values.ndim == 3:
            return torch.from_numpy(seen.all(-1))[None].expand(3, -1, -1)
        if self.holes == "zero" or (self.holes == "auto" and self.values.dtype != np.uint8):
            seen &= self.values != 0
        return torch.from_numpy(seen)[None]

    def like(self, prediction: Tensor) -> LoadedImage:
        """A prediction in units of the peak, brought back to this image's units and bit depth (rounded, clipped)."""
        values = prediction.detach().to("cpu", torch.float64).numpy() * self.peak
        if values.shape[-2:] != self.values.shape[:2] or values.size != self.values.size:
            raise ValueError(
                f"a prediction of shape {tuple(prediction.shape)} does not fit an image of {self.values.shape}; "
                "predict one image at a time"
            )
        if self.values.ndim == 3:
            values = np.einsum("kc,khw->hwc", OPPONENT, values.reshape(3, *self.values.shape[:2]))
        values = values.reshape(self.values.shape)
        return LoadedImage(as_dtype(values, self.values.dtype), self.peak, alpha=self.alpha)

    def in_colour(self) -> LoadedImage:
        """With three equal colours if it is grey."""
        return self if self.values.ndim == 3 else replace(self, values=np.repeat(self.values[..., None], 3, -1))


def as_dtype(values: NDArray[np.floating], dtype: np.dtype) -> NDArray[np.generic]:
    """Floats as `dtype`: integers are rounded and clipped to their range, never wrapped."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.clip(np.rint(np.nan_to_num(values)), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)


def load_image(
    path: str | Path, peak: float | None = None, holes: Holes = "auto", *, max_pixels: int = MAX_PIXELS
) -> LoadedImage:
    """Read an image; `peak` is the value that becomes 1 (default: 255 for 8 bits, 4000 for 16, 1 for floats).

    An image of more than `max_pixels` is refused by its header, before it is decoded.
    """
    path = Path(path)
    if not path.is_file():
        raise BadImage(f"{path}: there is no such file")
    numpy = path.suffix.lower() == ".npy" or _begins(path, b"\x93NUMPY")
    values, alpha = _read_npy(path, max_pixels) if numpy else _read_pillow(path, max_pixels)
    if peak is None:
        peak = _DEFAULT_PEAK.get(values.dtype.name, 1.0) if values.ndim == 2 or values.dtype != np.uint16 else 65535.0
    if not (peak > 0 and math.isfinite(peak)):
        raise ValueError(f"peak is {peak} but must be positive: it is the pixel value that becomes 1")
    image = LoadedImage(values, float(peak), holes, alpha)
    if not image.valid().any():
        raise BadImage(f"{path}: every pixel is zero, so the frame holds no reading")
    return image


def load_scaled(
    path: str | Path, peak: float | None = None, holes: Holes = "auto", *, depth: bool = False
) -> LoadedImage:
    """An image for a model. Values far above the default peak are refused: the model has seen none like them."""
    image = load_image(path, peak, holes)
    if peak is not None or image.values.dtype == np.uint8 or (depth and image.values.dtype == np.uint16):
        return image
    # Noise exceeds the peak by a half in a few pixels only. Depth may be three times the default peak away.
    known = image.values[np.isfinite(image.values)]
    limit = (3 if image.values.dtype == np.uint16 else 1.5) * image.peak
    if np.count_nonzero(known > limit) > 0.05 * known.size:
        scale = (PEAK_M, DEPTH_PEAK_MM) if depth else _SCALES
        peak = next((peak for peak in scale if known.max() <= (25 if depth else 1) * peak), scale[-1])
        raise BadImage(
            f"{path}: has values up to {known.max():.6g}, and {image.peak:g} counts as 1; give the value that is to "
            f"count as 1, as --peak {peak:g}"
        )
    return image


_SCALES = (4.0, 255.0, 4095.0, 16383.0, 65535.0)
"""What photographs usually count up to."""


def save_image(path: str | Path, image: LoadedImage) -> None:
    """Write an image in its own bit depth: integers as PNG or TIFF, grey floats as TIFF, everything as .npy."""
    path = Path(path)
    values, suffix = np.ascontiguousarray(image.values), path.suffix.lower()
    name, grey = values.dtype.name, values.ndim == 2
    if image.alpha is not None and suffix != ".npy":
        values = np.concatenate([values[..., None] if grey else values, image.alpha[..., None]], -1)
    if suffix == ".npy":
        np.save(path, values, allow_pickle=False)
    elif suffix in (".tif", ".tiff") and (grey or name == "uint8"):
        # Pillow writes no 16- or 64-bit float TIFF; 32 bits is the float that every reader knows.
        Image.fromarray(values.astype(np.float32) if values.dtype.kind == "f" else values).save(path, format="TIFF")
    elif suffix == ".png" and (name == "uint8" or (grey and name == "uint16")):
        Image.fromarray(values).save(path, format="PNG")
    else:
        raise BadImage(
            f"{path}: a {name} image{'' if grey else ' in colour'} cannot be written as "
            f"{suffix or 'a file without a suffix'}; use .png for 8 and 16 bits, .tiff or .npy for floats"
            f"{'' if grey else ', .npy for colours of more than 8 bits'}"
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


_Read = tuple[NDArray[np.generic], NDArray[np.generic] | None]  # values and alpha


def _read_pillow(path: Path, max_pixels: int) -> _Read:
    try:
        # Pillow warns about large images; the check below refuses them, so the warning would say it twice.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(path)
        with opened as image:
            _check_size(path, image.size[1], image.size[0], max_pixels)
            if getattr(image, "n_frames", 1) > 1:
                raise BadImage(f"{path}: holds {getattr(image, 'n_frames', 1)} pages; save the one to use on its own")
            if image.format == "PNG" and image.mode[0] != "I" and _bits_of_png(path) == 16:
                raise BadImage(f"{path}: has 16 bits a colour, of which 8 would be lost; save it as .npy or in 8 bits")
            form = image.format
            # Pillow 12 mixes up the pixels of such a TIFF.
            if form == "TIFF" and (turned := image.getexif().get(_ORIENTATION, 1)) != 1:
                raise BadImage(f"{path}: is stored turned or mirrored (orientation {turned}); save it upright first")
            return _values(path, ImageOps.exif_transpose(image), form)
    except BadImage:
        raise
    except Image.DecompressionBombError:
        raise BadImage(f"{path}: claims more than the {max_pixels} pixels allowed; crop or shrink it first") from None
    except Image.UnidentifiedImageError:
        raise BadImage(f"{path}: is not an image of a known format") from None
    except Exception as error:  # a damaged file raises anything from OSError to struct.error, by format and by place
        raise BadImage(f"{path}: is damaged or cut short ({error})") from None


def _values(path: Path, image: Image.Image, form: str | None) -> _Read:
    """Pixels and alpha of an image as Pillow read it."""
    mode = image.mode
    if mode == "F":
        return np.array(image), None
    # Older readers give 16-bit PNG as 32-bit integers, which PNG itself does not have.
    if mode.startswith("I;16") or (mode == "I" and form == "PNG"):
        return np.asarray(image).astype(np.uint16), None
    if mode == "1":
        return np.array(image.convert("L")), None
    if mode in ("P", "PA", "CMYK", "YCbCr", "RGBX", "HSV", "LAB"):
        image = image.convert("RGBA" if mode == "PA" or "transparency" in image.info else "RGB")
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        raise BadImage(
            f"{path}: has pixels of type {mode}, but grey of 8 bits, 16 bits or floats, or colour, is needed"
        )
    values = np.array(image)
    if image.mode == "LA":
        return values[..., 0], values[..., 1]
    return (values[..., :3], values[..., 3]) if image.mode == "RGBA" else (values, None)


def _begins(path: Path, with_: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(with_)) == with_


def _bits_of_png(path: Path) -> int:
    with path.open("rb") as file:
        return file.read(25)[24]  # the header: signature, length, IHDR, width, height, bits


def _read_npy(path: Path, max_pixels: int) -> _Read:
    try:
        # The memory map checks the header's claim against the file's length before anything is allocated.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise BadImage(f"{path}: is not a numpy array, or is cut short ({error})") from None
    colour = mapped.ndim == 3 and mapped.shape[2] == 3
    if not (mapped.ndim == 2 or colour) or mapped.dtype.name not in (
        "uint8",
        "uint16",
        "float16",
        "float32",
        "float64",
    ):
        raise BadImage(
            f"{path}: holds a {mapped.dtype.name} array of shape {mapped.shape}, "
            "but an image (H, W) or (H, W, 3) of 8 bits, 16 bits or floats is needed"
        )
    height, width = mapped.shape[:2]
    _check_size(path, height, width, max_pixels)
    return np.array(mapped), None


def _check_size(path: Path, height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise BadImage(f"{path}: claims {width}×{height} pixels, more than the {max_pixels} allowed; crop or shrink it")
    if height * width == 0:
        raise BadImage(f"{path}: has no pixels")
