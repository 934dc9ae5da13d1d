"""report.html: the table, example images with error maps, the descent iteration by iteration, training curves."""

from __future__ import annotations

import base64
import io
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import spen
from spen.models import open_model
from spen.tasks.charts import draw_lines
from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.losses import planes
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.report import Section, write_page
from spen.training import Run

DEPTH_COLOURS, ERROR_COLOURS = "magma", "RdBu"

_COLUMNS = {
    "PSNR": ("psnr", 2),
    "±": ("spread", 2),
    "surfaces": ("surface_psnr", 2),
    "holes, mm": ("hole_rmse_mm", 0),
    "s/frame": ("seconds_per_frame", 3),
    "training, s": ("train_seconds", 0),
    "batches": ("batches", 0),
    "paper": ("paper", 2),
}
_NOTE = (
    "PSNR in decibels over the scored pixels of each test frame, then the mean over frames. The paper's "
    "figures are on other scenes with another peak: its order of the systems is what compares."
)


def write_report(whole: dict[str, Any], folder: Path) -> Path:
    """report.html beside the results, with every picture inside the file."""
    regime = find_regime(whole["data"])
    rows = [("noisy", *_cells(whole["raw"]))]
    rows += [
        (line["recipe"], *([line["problem"] or "unfinished"] if line["psnr"] is None else _cells(line)))
        for line in whole["table"]
        if ":" not in line["recipe"]
    ]
    sections = [Section(note=_NOTE, head=("", *_COLUMNS), rows=rows)]
    if any(":" in line["recipe"] for line in whole["table"]):
        before, after = ("PSNR", "±"), ("surfaces", "training, s")
        ablation = [
            (changed, *_cells(line, before), str(line["seeds"]), _number(better, "+.2f"), *_cells(line, after))
            for changed, line, better in ablation_lines(whole)
        ]
        head = ("", *before, "seeds", "difference", *after)
        sections.append(Section("One choice at a time", head=head, rows=ablation))
    first: dict[str, dict[str, Any]] = {}
    for result in whole["results"]:
        if "psnr" in result:
            first.setdefault(result["recipe"], result)
    first = {name: result for name, result in first.items() if ":" not in name} or first
    if first:
        test = open_splits(regime, quick=whole["quick"]).test
        index = len(test) // 2
        frame = test.frame(index)
        answers = [_answer_of(result, frame) for result in first.values()]
        drawn = images_figure(frame, {a.name: a.outputs[-1] for a in answers})
        sections.append(Section(f"Test frame {test.names[index]}", html=_picture(drawn)))
        if descents := [a for a in answers if a.energies]:
            charts = draw_lines("energy, less that of the start", {a.name: a.gained for a in descents})
            charts += draw_lines("PSNR, dB", {a.name: a.scores(frame) for a in descents})
            sections.append(Section("The descent on this frame", html=charts))
        metrics = {name: Run.open(result["folder"]).metrics() for name, result in first.items() if "folder" in result}
        curves = {name: [entry["dev"] for entry in entries if "dev" in entry] for name, entries in metrics.items()}
        if any(curves.values()):
            curve = draw_lines("development PSNR, dB", {n: c for n, c in curves.items() if c}, x="epoch", first=1)
            sections.append(Section("Training", html=curve))
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(folder / "report.html", f"Denoising: {regime.about}", sections)


def ablation_lines(whole: dict[str, Any]) -> list[tuple[str, dict[str, Any], float | None]]:
    """(what was changed, its line, decibels above the recipe that was changed) of every changed recipe.

    The difference is taken over the seeds that both have: the seed moves a row by as much as most changes do.
    """
    lines = {line["recipe"]: line for line in whole["table"]}
    scores: dict[str, dict[int, float]] = {}
    for result in whole["results"]:
        if "psnr" in result:
            scores.setdefault(result["recipe"], {})[result["seed"]] = result["psnr"]
    found: list[tuple[str, dict[str, Any], float | None]] = []
    for name, line in lines.items():
        base, *changes = name.split(":")
        if not changes:
            if any(other.startswith(f"{name}:") for other in lines):
                found.append((f"{name} as it is", line, None))
            continue
        mine, others = scores.get(name, {}), scores.get(base, {})
        differences = [mine[seed] - others[seed] for seed in mine.keys() & others.keys()]
        better = statistics.fmean(differences) if differences else None
        found.append((", ".join(change.replace("=", " = ") for change in changes), line, better))
    return found


def _cells(line: dict[str, Any], columns: Iterable[str] = _COLUMNS) -> list[str]:
    return [_number(line.get(key), f".{digits}f") for key, digits in map(_COLUMNS.__getitem__, columns)]


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


@dataclass(frozen=True)
class Answer:
    """The outputs of a system for a frame: y_0 … y_T with energies and rates, or one if it does not descend."""

    name: str
    outputs: list[Tensor]  # (1, H, W) each
    seconds: float
    energies: list[float] = field(default_factory=list)  # T + 1
    rates: list[float] = field(default_factory=list)  # T

    @property
    def gained(self) -> list[float]:  # T + 1
        """Energies, less that of the start."""
        return [energy - self.energies[0] for energy in self.energies]

    def scores(self, frame: Frame) -> list[float]:
        """The PSNR of every output."""
        return [float(psnr(y, frame.truth, frame.scored)) for y in self.outputs]


def answer(name: str, system: tuple[Denoise, spen.SPEN | None], frame: Frame) -> Answer:
    """Run a system on a frame; keep all iterates if it descends."""
    denoise, model = system
    x = planes(frame)
    began = time.perf_counter()
    if model is None:
        output = denoise(x)[0]
        return Answer(name, [output], time.perf_counter() - began)
    with torch.no_grad():
        trajectory = model(x)
        energies = trajectory.energies[:, 0].tolist()
    seconds = time.perf_counter() - began
    rates = getattr(model.minimizer.rule, "rates", None)
    return Answer(
        name,
        [trajectory.start[0], *(y[0] for y in trajectory.outputs)],
        seconds,
        energies,
        [] if rates is None else rates().detach().flatten().tolist(),
    )


def _answer_of(result: dict[str, Any], frame: Frame) -> Answer:
    """That of a finished row; of the shipped model, whose row is a reference, without its way there."""
    opened: Any = open_model(result.get("model") or result["folder"])
    return answer(result["recipe"], (opened.denoise, None if "model" in result else opened.model), frame)


def image_ranges(frame: Frame) -> tuple[float, float, float]:
    """(low, high, reach): the middle 98 % of the known values of a frame, and of the errors, from −reach to reach."""
    known = frame.scored | frame.hole
    seen, image = (known, frame.truth) if bool(known.any()) else (frame.valid, frame.noisy)
    low, high = np.percentile(image[seen].numpy(), [1, 99]) if bool(seen.any()) else (0.0, 1.0)
    filled = fill_pyramid(frame.noisy[None], frame.valid[None].float())[0]
    reach = float((filled - frame.truth)[frame.scored].abs().quantile(0.98)) if bool(frame.scored.any()) else 1.0
    return float(low), float(high), reach


def error_map(image: Tensor, frame: Frame) -> NDArray[np.float32]:  # (1, H, W) -> (H, W)
    """image − truth where that is scored, NaN elsewhere."""
    return with_gaps(image - frame.truth, frame.scored)


def with_gaps(image: Tensor, known: Tensor) -> NDArray[np.float32]:  # (1, H, W) twice -> (H, W)
    """The image, NaN where nothing is known."""
    return torch.where(known, image, torch.nan)[0].numpy()


def images_figure(frame: Frame, answers: dict[str, Tensor], across: int = 6) -> Figure:
    """Truth, noisy and every answer on one scale, the error of each below it on another; ``across`` in a row."""
    low, high, reach = image_ranges(frame)
    photograph = bool(frame.scored.all())  # a depth image has holes
    columns = {"truth": frame.truth, "noisy": frame.noisy, **answers}
    known = {"truth": frame.scored | frame.hole, "noisy": frame.valid}
    wide, lines = min(across, len(columns)), -(-len(columns) // across)
    figure = Figure(figsize=(2.6 * wide, 4.3 * lines))
    axes = figure.subplots(2 * lines, wide, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for place, (name, image) in enumerate(columns.items()):
        top, bottom = axes[2 * (place // across)][place % across], axes[2 * (place // across) + 1][place % across]
        shown = with_gaps(image, known.get(name, torch.ones_like(frame.valid)))
        top.imshow(shown, cmap="gray" if photograph else DEPTH_COLOURS, vmin=low, vmax=high)
        score = "" if name == "truth" else f" {float(psnr(image, frame.truth, frame.scored)):.2f} dB"
        top.set_title(name + score, fontsize=9)
        if name != "truth":
            bottom.imshow(error_map(image, frame), cmap=ERROR_COLOURS, vmin=-reach, vmax=reach)
    figure.tight_layout(pad=0.4)
    return figure


def _picture(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
