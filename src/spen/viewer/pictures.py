"""Images as PNG data URIs: a colour map over a range, its legend, gaps in grey."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

LONGEST = 480
"""Larger images are averaged down to this many pixels on their longer side: a page has dozens of them."""

_GAP = 255  # the last entry of the palette: no value
_GAP_COLOUR = (128, 132, 140)


@dataclass(frozen=True)
class Scale:
    """A colour map over [low, high], and how numbers on it are written: value · factor, then the unit."""

    name: str
    colours: str
    low: float
    high: float
    factor: float = 1.0
    unit: str = ""
    digits: int = 1

    def number(self, value: float, *, signed: bool = False) -> str:
        shown = f"{value * self.factor:{'+' if signed else ''}.{self.digits}f}".replace("-", "−")
        return f"{shown} {self.unit}".rstrip()


def shrunk(values: NDArray[np.floating], longest: int = LONGEST) -> NDArray[np.floating]:  # (H, W) -> (h, w)
    """Means over blocks, so that the longer side has at most `longest` pixels; gaps (NaN) are ignored."""
    block = -(-max(values.shape) // longest)
    if block == 1:
        return values
    height, width = (-(-side // block) * block for side in values.shape)
    padded = np.full((height, width), np.nan)
    padded[: values.shape[0], : values.shape[1]] = values
    blocks = padded.reshape(height // block, block, width // block, block)
    known = np.isfinite(blocks)
    total = np.where(known, blocks, 0.0).sum((1, 3))
    count = known.sum((1, 3))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def paint(values: NDArray[np.floating], scale: Scale) -> str:  # (H, W), NaN where nothing is known
    """The data URI (`data:image/png…`) of the image in the scale's colours, one byte per pixel."""
    small = shrunk(values)
    share = (small - scale.low) / max(scale.high - scale.low, 1e-12)
    known = np.isfinite(share)
    index = np.where(known, np.clip(np.where(known, share, 0.0), 0, 1) * (_GAP - 1) + 0.5, _GAP).astype(np.uint8)
    picture = Image.frombytes("P", (index.shape[1], index.shape[0]), index.tobytes())
    picture.putpalette(_palette(scale.colours))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def legend(scale: Scale, *, signed: bool = False) -> str:
    """A bar of the colours with the numbers at its ends and in its middle."""
    palette = _palette(scale.colours)
    stops = ",".join("#" + "".join(f"{c:02x}" for c in palette[3 * k : 3 * k + 3]) for k in range(0, _GAP, 23))
    middle = (scale.low + scale.high) / 2
    numbers = "".join(
        f"<span>{escape(scale.number(value, signed=signed and value != 0))}</span>"
        for value in (scale.low, middle, scale.high)
    )
    return (
        f'<div class="legend"><b>{escape(scale.name)}</b><div><i style="background:linear-gradient(90deg,{stops})"></i>'
        f'<div class="numbers">{numbers}</div></div></div>'
    )


def _palette(name: str) -> list[int]:
    colours = matplotlib.colormaps[name](np.linspace(0, 1, _GAP))[:, :3]
    return [*np.rint(colours * 255).astype(int).flatten().tolist(), *_GAP_COLOUR]
