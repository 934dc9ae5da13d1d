"""Time and memory against steps, batch and image size, and the main comparison, as PNG beside the results.

python -m benchmarks.plots runs/benchmarks/results.json [--out docs/figures]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.results import read_all

Json = dict[str, Any]
AXES = {"steps": "steps T", "batch": "batch", "size": "pixels of an image"}


def points(rows: list[Json], axis: str) -> dict[str, list[tuple[int, float, float]]]:
    """(value, ms, MiB) by system, from all rows of the DeepPrior that differ from the sweep's base in this axis."""
    base = Counter(_fixed(row, axis) for row in rows if row["suite"] == f"sweep-{axis}")
    if not base:
        return {}
    wanted = base.most_common(1)[0][0]
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        if row["problem"] == "DeepPrior" and _fixed(row, axis) == wanted and row["suite"] != "overhead":
            found.setdefault(row["system"], {})[_value(row, axis)] = (row["milliseconds"], row["peak_mib"])
    return {
        system: [(x, *at[x]) for x in sorted(at)]
        for system, at in found.items()
        if any(row["suite"].startswith("sweep") and row["system"] == system for row in rows)
    }


def _value(row: Json, axis: str) -> int:
    sizes = row["sizes"]
    return sizes["height"] * sizes["width"] if axis == "size" else sizes[axis]


def _fixed(row: Json, axis: str) -> tuple[Any, ...]:
    moving = ("height", "width") if axis == "size" else (axis,)
    return tuple((k, v) for k, v in row["sizes"].items() if k not in moving)


def draw_sweep(rows: list[Json], axis: str, title: str) -> Figure | None:
    """Two panels on logarithmic axes: a line of slope one is linear growth."""
    lines = points(rows, axis)
    if not lines:
        return None
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (system, at) in enumerate(lines.items()):
        style = {"marker": "o", "markersize": 4, "linestyle": "-" if system.startswith("spen ") else "--"}
        x = [p[0] for p in at]
        left.plot(x, [p[1] for p in at], color=f"C{number}", label=system, **style)
        right.plot(x, [p[2] for p in at], color=f"C{number}", label=system, **style)
    ticks = sorted({p[0] for at in lines.values() for p in at})
    for axes, what in ((left, "ms a training step"), (right, "peak MiB")):
        _label(axes, AXES[axis], what)
        axes.set_xticks(ticks, [f"{x:,}" for x in ticks], minor=False)
        axes.xaxis.set_minor_locator(NullLocator())
    left.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3)


def numbered(rows: list[Json], near: float = 1.08) -> dict[str, tuple[float, float]]:
    """(ms, MiB) by number, from 1 in the order of the rows. Numbers of systems that lie together stand together."""
    found: list[tuple[list[str], float, float]] = []
    for number, row in enumerate(rows, start=1):
        x, y = row["milliseconds"], row["peak_mib"]
        for names, first_x, first_y in found:
            if max(x / first_x, first_x / x, y / first_y, first_y / y) < near:
                names.append(str(number))
                break
        else:
            found.append(([str(number)], x, y))
    return {", ".join(names): (x, y) for names, x, y in found}


def draw_comparison(rows: list[Json], suite: str, title: str) -> Figure | None:
    """Time against memory, a point a system: the corner at the lower left is the place to be."""
    own = [row for row in rows if row["suite"] == suite]
    if not own:
        return None
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(own, start=1):
        colour = "C0" if row["system"].startswith("spen ") else "C3" if row["system"].startswith("JAX") else "0.4"
        axes.scatter(row["milliseconds"], row["peak_mib"], color=colour, s=22, label=f"{number}  {row['system']}")
    for numbers, at in numbered(own).items():
        axes.annotate(numbers, at, xytext=(5, 3), textcoords="offset points", fontsize="small")
    for key, name, style in (("floor_ms", "floor", ":"), ("kernels_ms", "kernels", "--")):
        known = [row[key] for row in own if row[key]]
        if known:
            axes.axvline(known[0], color="0.6", linestyle=style, label=f"{name} ({own[0]['precision']})")
    _label(axes, "ms a training step", "peak MiB")
    fastest = min(row["floor_ms"] or row["milliseconds"] for row in own)
    slowest = max(row["milliseconds"] for row in own)
    ticks = [n * 10**k for k in range(-3, 6) for n in (1, 2, 5) if fastest / 1.3 < n * 10**k < 1.5 * slowest]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(fastest / 1.3, 1.5 * slowest)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.set_title(title, fontsize="medium")
    return figure


def draw(results: Json, folder: Path) -> list[Path]:
    """All figures that the results hold rows for."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = results["machine"]
    place = machine.get("gpu") or f"{machine['processor']}, threads: {machine['threads']}"
    rows, written = results["rows"], []
    figures = {f"speed-{axis}": draw_sweep(rows, axis, f"DeepPrior, {place}") for axis in AXES}
    for suite in ("deep-prior-20", "deep-prior-3"):
        figures[f"speed-{suite}"] = draw_comparison(rows, suite, f"{suite}, {place}")
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=120)
            written.append(folder / f"{name}.png")
    return written


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="one or more runs on the same machine")
    parser.add_argument("--out", type=Path, help="the folder of the figures; that of the results if not given")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for path in draw(read_all(options.results), options.out or options.results[0].parent):
        print(path)


if __name__ == "__main__":
    main()
