"""The content of the denoising tab as HTML: an image, its noise, and the outputs of systems at every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.charts import draw_lines
from spen.tasks.denoising.baselines.classical import TotalVariation, batched
from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.data import Frame, Rooms, depth_frame
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.images import DEPTH_PEAK_MM, PEAK_M, BadImage, load_image
from spen.tasks.denoising.metrics import hole_rmse_mm, psnr
from spen.tasks.denoising.regimes import STRENGTH_30DB_ROOMS
from spen.tasks.denoising.report import DEPTH_COLOURS, ERROR_COLOURS, Answer, error_map, image_ranges, with_gaps
from spen.tasks.denoising.sensor import Sensor
from spen.viewer.iterates import SMALL, data_t, note, with_slider
from spen.viewer.pictures import Scale, legend, paint, shrunk

Noise = Literal["depth sensor", "Gaussian", "none"]
MAX_PIXELS = 1_500_000
"""The largest upload: a descent takes seconds on two cores and a gigabyte of memory."""

EXAMPLES = 6
"""Test rooms of the page."""

STRENGTHS: dict[Noise, tuple[float, float, str]] = {
    "depth sensor": (STRENGTH_30DB_ROOMS, 30.0, "1 is a Kinect, 12.2 makes 30 dB"),
    "Gaussian": (25.0, 100.0, "standard deviation σ, in 255ths of the peak"),
    "none": (0.0, 100.0, "no noise is added"),
}
"""Of each noise: a strength to begin with, the largest, and what it is."""


@dataclass(frozen=True)
class Baseline:
    """A system that needs no training, and a description."""

    about: str
    denoise: Denoise


@dataclass(frozen=True)
class Scene:
    """An image before any noise, and the unit its numbers are shown in: value · factor."""

    name: str
    image: Tensor  # (1, H, W) in units of the peak, 0 where nothing is known
    factor: float
    depth: bool
    black: bool = False  # 0 is a grey value like any other

    @property
    def known(self) -> Tensor:  # (1, H, W), bool
        return (self.image != 0) | self.black


TV = TotalVariation(0.06)
"""What `spen train tv --data rooms` chooses by development rooms."""


BASELINES = {
    "tv": Baseline(f"total variation, weight {TV.weight}", batched(TV)),
    "reading": Baseline("the reading, its holes filled", lambda x: fill_pyramid(x.image, x.seen)),
}


def example(number: int) -> Scene:
    """A built-in room."""
    rooms = Rooms("test", EXAMPLES)
    if not 0 <= number < len(rooms):
        raise ValueError(f"there are rooms 1 to {len(rooms)}, not {number + 1}")
    return Scene(f"room {number + 1}", rooms.truth(number) / PEAK_M, DEPTH_PEAK_MM / 1000, True)


def thumbnail(scene: Scene) -> str:
    """A small picture of the scene as a data URL."""
    low, high = np.percentile(scene.image[scene.known].numpy(), [1, 99])
    values = with_gaps(scene.image, scene.known)
    return paint(shrunk(values, 160), Scale(scene.name, DEPTH_COLOURS, float(low), float(high)))


def upload(path: str | Path, peak: float | None = None) -> Scene:
    """An image file. Errors name the file without its folder."""
    path = Path(path)
    try:
        image = load_image(path, peak, max_pixels=MAX_PIXELS)
    except BadImage as error:
        raise BadImage(str(error).replace(str(path), path.name)) from None
    depth = image.values.dtype == np.uint16 and image.peak == DEPTH_PEAK_MM
    return Scene(
        path.name, image.tensor(), image.peak / 1000 if depth else image.peak, depth, bool(image.valid().all())
    )


def observe(scene: Scene, noise: Noise, strength: float, *, seed: int = 0) -> Frame:
    """The input of a system: the image read by a sensor, with Gaussian noise, or without added noise.

    `strength` is that of the sensor, of which 12.2 makes 30 dB on rooms, or σ in 255ths of the peak. Without added
    noise there is no truth, and nothing is scored.
    """
    image, known = scene.image * PEAK_M, scene.known
    generator = torch.Generator().manual_seed(seed)
    if noise == "none":
        return depth_frame(image, known, torch.zeros_like(image))
    if not 0 <= strength <= 100:
        raise ValueError(f"the strength of the noise is between 0 and 100, not {strength}")
    if noise == "depth sensor":
        return depth_frame(*Sensor(strength)(image, generator), image)
    if noise == "Gaussian":
        added = PEAK_M * strength / 255 * torch.randn(image.shape, generator=generator)
        return depth_frame(image + added, known, image)
    raise ValueError(f"there is no noise {noise!r}; choose depth sensor, Gaussian or none")


def show(scene: Scene, frame: Frame, answers: Sequence[Answer]) -> str:
    """Truth, reading and outputs with their errors, then curves, then a table of scores."""
    last = max((len(a.outputs) - 1 for a in answers), default=0)
    known = bool(frame.scored.any())
    scales = _scales(scene, frame, answers)
    columns = [_still("truth", "", with_gaps(frame.truth, frame.truth != 0), scales)] if known else []
    error = error_map(frame.noisy, frame) if known else None
    columns.append(_still("reading", _decibels(frame.noisy, frame), with_gaps(frame.noisy, frame.valid), scales, error))
    columns += [_moving(a, frame, scales, last, known) for a in answers]
    parts = [
        f'<div class="tiles" style="--columns:{len(columns)}">{"".join(columns)}</div>',
        f'<div class="charts">{"".join(_charts(frame, answers, last, known))}</div>',
        _figures(scene, frame, answers, known),
    ]
    if not known:
        parts.append(note("There is no truth to compare with: the lower row shows what was changed in the reading."))
    return with_slider(parts, last)


# ── pictures ──


@dataclass(frozen=True)
class _Scales:
    image: Scale
    error: Scale


def _scales(scene: Scene, frame: Frame, answers: Sequence[Answer]) -> _Scales:
    low, high, reach = image_ranges(frame)
    if not bool(frame.scored.any()):
        moved = [(a.outputs[-1] - frame.noisy)[frame.valid].abs() for a in answers]
        reach = max((float(np.quantile(m.numpy(), 0.98)) for m in moved if m.numel()), default=0.0) or 1e-3
    unit, digits = ("m", 1) if scene.depth else ("", 0 if scene.factor > 2 else 2)
    what = "error" if bool(frame.scored.any()) else "change"
    error_factor, error_unit = (1000 * scene.factor, "mm") if scene.depth else (scene.factor, "")
    return _Scales(
        Scale("depth" if scene.depth else "value", DEPTH_COLOURS, low, high, scene.factor, unit, digits),
        Scale(what, ERROR_COLOURS, -reach, reach, error_factor, error_unit, 0 if scene.factor > 2 else 3),
    )


def _still(
    title: str,
    score: str,
    image: NDArray[np.floating],
    scales: _Scales,
    error: NDArray[np.floating] | None = None,
) -> str:
    """A column with one picture; below it its errors, or the colour bars where it has none."""
    if error is None:
        below = f'<div class="bars">{legend(scales.image)}{legend(scales.error, signed=True)}</div>'
    else:
        below = f'<img alt="error of the {escape(title)}" src="{paint(error, scales.error)}">'
    return (
        f"<figure><figcaption><b>{escape(title)}</b><span>{escape(score)}</span></figcaption>"
        f'<img alt="{escape(title)}" src="{paint(image, scales.image)}">{below}</figure>'
    )


def _moving(a: Answer, frame: Frame, scales: _Scales, last: int, known: bool) -> str:
    """A column that follows the slider."""
    captions, images, errors = [], [], []
    ended = len(a.outputs) - 1
    everywhere = torch.ones_like(frame.valid)
    for t, y in enumerate(a.outputs):
        at = data_t(t, last, ended=ended)
        error = error_map(y, frame) if known else with_gaps(y - frame.noisy, frame.valid)
        captions.append(f'<span data-t="{at}">{escape(_decibels(y, frame))}</span>')
        images.append(
            f'<img data-t="{at}" alt="{escape(a.name)}, iteration {t}" '
            f'src="{paint(with_gaps(y, everywhere), scales.image)}">'
        )
        errors.append(
            f'<img data-t="{at}" alt="{scales.error.name} of {escape(a.name)}, iteration {t}" '
            f'src="{paint(error, scales.error)}">'
        )
    return (
        f'<figure class="answer"><figcaption><b>{escape(a.name)}</b> {"".join(captions)}</figcaption>'
        f"{''.join(images)}{''.join(errors)}</figure>"
    )


def _decibels(y: Tensor, frame: Frame) -> str:
    return f"{float(psnr(y, frame.truth, frame.scored)):.2f} dB" if bool(frame.scored.any()) else ""


# ── curves and figures ──


def _charts(frame: Frame, answers: Sequence[Answer], last: int, known: bool) -> list[str]:
    descents = [a for a in answers if a.energies]
    charts = []
    if descents:
        gained = {a.name: a.gained for a in descents}
        charts.append(draw_lines("energy, less that of the start", gained, cursor=True, size=SMALL))
    if known and last:
        scores = {a.name: a.scores(frame) for a in answers}
        scores = {name: s * (last + 1) if len(s) == 1 else s for name, s in scores.items()}
        charts.append(draw_lines("PSNR, dB", scores, cursor=True, size=SMALL))
    if any(a.rates for a in descents):
        rates = {a.name: a.rates for a in descents if a.rates}
        charts.append(draw_lines("step sizes η", rates, x="step", first=1, cursor=True, size=SMALL))
    return charts


def _figures(scene: Scene, frame: Frame, answers: Sequence[Answer], known: bool) -> str:
    """One row per system: scores, energy, steps and seconds."""
    head = ["", *(["PSNR", "on surfaces"] if known else []), *(["in holes"] if known and scene.depth else [])]
    head += ["energy", "steps", "seconds"]
    rows = []
    for a in answers:
        y = a.outputs[-1]
        cells = [a.name]
        if known:
            cells += [_decibels(y, frame), _number(float(psnr(y, frame.truth, frame.surface)), "{:.2f} dB")]
        if known and scene.depth:
            cells.append(_number(float(hole_rmse_mm(y, frame.truth, frame.hole)), "{:.0f} mm"))
        cells += [
            f"{a.energies[0]:,.2f} → {a.energies[-1]:,.2f}" if a.energies else "–",
            str(len(a.outputs) - 1) if a.energies else "–",
            f"{a.seconds:.2f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    top = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<table class="figures"><tr>{top}</tr>{"".join(rows)}</table>'


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else form.format(value)
