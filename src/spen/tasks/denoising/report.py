"""A page to look at: the table, example images with error maps, the descent iteration by iteration, training curves."""

from __future__ import annotations

import base64
import html
import io
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.models import find_model
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.losses import planes
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.opened import Denoiser
from spen.tasks.denoising.recipes import find_regime
from spen.tasks.denoising.train import open_splits
from spen.training import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

DEPTH_COLOURS, ERROR_COLOURS = "magma", "RdBu"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, td.about { text-align: left } img { max-width: 100% } .note { color: #666 }
"""


def write_report(whole: dict[str, Any], out: Path | str) -> Path:
    """DATA/report.html beside the results, with every picture inside the file."""
    done = [r for r in whole["results"] if "psnr" in r]
    first: dict[str, dict[str, Any]] = {}
    for result in done:
        first.setdefault(result["recipe"], result)
    parts = [f"<h1>Denoising: {html.escape(find_regime(whole['data']).about)}</h1>", _table(whole)]
    if any(":" in line["recipe"] for line in whole["table"]):
        parts += ["<h2>One choice at a time</h2>", _ablation(whole)]
    first = {name: result for name, result in first.items() if ":" not in name} or first
    if first:
        splits = open_splits(find_regime(whole["data"]), quick=whole["quick"])
        index = len(splits.test) // 2
        frame = splits.test.frame(index)
        answers, descents = _run_all(first, frame)
        parts += [
            f"<h2>Test frame {html.escape(splits.test.name(index))}</h2>",
            _picture(images_figure(frame, answers)),
        ]
        if descents:
            parts += ["<h2>The descent on this frame</h2>", _picture(_descent_figure(descents))]
        curves = {name: training_curve(Run.open(r["folder"]).metrics()) for name, r in first.items() if "folder" in r}
        curves = {name: points for name, points in curves.items() if points}
        if curves:
            parts += ["<h2>Training</h2>", _picture(_training_figure(curves))]
    page = f"<!doctype html><meta charset=utf-8><title>Denoising</title><style>{_STYLE}</style>" + "\n".join(parts)
    path = Path(out) / whole["data"] / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


_COLUMNS = ("", "PSNR", "±", "surfaces", "holes, mm", "s/frame", "training, s", "batches", "paper")


def training_curve(metrics: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """(seconds, development score) of every epoch; the clock of a stage goes on from the one before."""
    points: list[tuple[float, float]] = []
    before, stage = 0.0, None
    for entry in metrics:
        if "dev" not in entry:
            continue
        if stage is not None and entry["stage"] != stage:
            before = points[-1][0]
        stage = entry["stage"]
        points.append((before + entry["seconds"], entry["dev"]))
    return points


def ablation_lines(whole: dict[str, Any]) -> list[tuple[str, dict[str, Any], float | None]]:
    """(what was changed, its line, decibels above the recipe that was changed) of every changed recipe.

    The difference is that of the seeds that both have: which seed it was moves a row by as much as most changes do.
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


def _ablation(whole: dict[str, Any]) -> str:
    head = "".join(f"<th>{c}" for c in ("", "PSNR", "±", "seeds", "difference", "surfaces", "training, s"))
    rows = []
    for changed, line, better in ablation_lines(whole):
        cells = [_number(line[key], 2) for key in ("psnr", "spread")]
        cells += [str(line["seeds"]), "" if better is None else f"{better:+.2f}", _number(line["surface_psnr"], 2)]
        cells.append(_number(line["train_seconds"], 0))
        rows.append(f"<tr><td>{html.escape(changed)}" + "".join(f"<td>{cell}" for cell in cells))
    return f"<table><tr>{head}\n" + "\n".join(rows) + "</table>"


def _table(whole: dict[str, Any]) -> str:
    raw = whole["raw"]
    head = "".join(f"<th>{c}" for c in _COLUMNS)
    rows = [f"<tr><td>noisy<td>{raw['psnr']:.2f}<td><td>{raw['surface_psnr']:.2f}<td>{_number(raw['hole_rmse_mm'], 0)}"]
    for line in whole["table"]:
        name = html.escape(line["recipe"])
        if ":" in name:
            continue
        if line["psnr"] is None:
            rows.append(f"<tr><td>{name}<td colspan=8 class=about>{html.escape(line['problem'] or 'unfinished')}")
            continue
        cells = [
            _number(line["psnr"], 2),
            _number(line["spread"], 2),
            _number(line["surface_psnr"], 2),
            _number(line["hole_rmse_mm"], 0),
            _number(line["seconds_per_frame"], 3),
            _number(line["train_seconds"], 0),
            _number(line.get("batches"), 0),
            _number(line["paper"], 2),
        ]
        rows.append(f"<tr><td>{name}" + "".join(f"<td>{cell}" for cell in cells))
    note = (
        "PSNR in decibels over the scored pixels of each test frame, then the mean over frames. The paper's "
        "figures are on other scenes with another peak: its order of the systems is what compares."
    )
    return f"<table><tr>{head}\n" + "\n".join(rows) + f"</table><p class=note>{note}</p>"


def _run_all(
    first: dict[str, dict[str, Any]], frame: Frame
) -> tuple[dict[str, Tensor], dict[str, list[tuple[float, float]]]]:
    """Each row's answer for the frame, and (energy, PSNR) at every iterate of those that descend one."""
    x = planes(frame)
    answers: dict[str, Tensor] = {}
    descents: dict[str, list[tuple[float, float]]] = {}
    for name, result in first.items():
        opened = Denoiser.open(find_model(result.get("model") or result["folder"]))
        denoise, model = opened.denoise, None if "model" in result else opened.model
        answers[name] = denoise(x)[0]
        if model is not None:
            with torch.no_grad():
                trajectory = model(x)
            values = [float(psnr(y[0], frame.truth, frame.scored)) for y in (trajectory.start, *trajectory.outputs)]
            descents[name] = list(zip(trajectory.energies[:, 0].tolist(), values, strict=True))
    return answers, descents


class Ranges(NamedTuple):
    """What a frame's pictures span, so that all of them can be told apart and compared."""

    low: float  # depth, in units of the peak
    high: float
    reach: float  # errors, from −reach to reach


def image_ranges(frame: Frame) -> Ranges:
    """The middle 98 % of what is known of the frame, and of the reading's errors where there is a truth."""
    known = frame.scored | frame.hole
    seen, image = (known, frame.truth) if bool(known.any()) else (frame.valid, frame.noisy)
    low, high = np.percentile(image[seen].numpy(), [1, 99]) if bool(seen.any()) else (0.0, 1.0)
    filled = fill_pyramid(frame.noisy[None], frame.valid[None].float())[0]
    reach = float((filled - frame.truth)[frame.scored].abs().quantile(0.98)) if bool(frame.scored.any()) else 1.0
    return Ranges(float(low), float(high), reach)


def error_map(image: Tensor, frame: Frame) -> NDArray[np.float32]:  # (1, H, W) -> (H, W)
    """image − truth where that is scored, NaN elsewhere."""
    return torch.where(frame.scored, image - frame.truth, torch.nan)[0].numpy()


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
    figure, axes = plt.subplots(2 * lines, wide, figsize=(2.6 * wide, 4.3 * lines), squeeze=False)
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


def _descent_figure(descents: dict[str, list[tuple[float, float]]]) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
    for name, values in descents.items():
        energies = [e - values[0][0] for e, _ in values]
        left.plot(energies, marker=".", label=name)
        right.plot([p for _, p in values], marker=".", label=name)
    left.set(xlabel="iteration", ylabel="energy − energy of the start")
    right.set(xlabel="iteration", ylabel="PSNR (dB)")
    right.legend(frameon=False, fontsize=8)
    return _tidy(figure)


def _training_figure(curves: dict[str, list[tuple[float, float]]]) -> Figure:
    figure, axis = plt.subplots(figsize=(7, 3.4))
    for name, points in curves.items():
        axis.plot(*zip(*points, strict=True), marker=".", label=name)
    axis.set(xlabel="seconds of training", ylabel="development PSNR (dB)")
    axis.legend(frameon=False, fontsize=8)
    return _tidy(figure)


def _tidy(figure: Figure) -> Figure:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _picture(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"
