"""The curves of a run folder: metrics.jsonl by epoch and stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

from spen.tasks.charts import draw_lines
from spen.training import Run
from spen.viewer.iterates import SMALL, note

_NAN = float("nan")
_SHOWN = 6  # lines in one chart


def show(run: Run, *, now: float | None = None) -> str:
    """The description of the run, its progress, and its curves."""
    description = run.description()
    entries = run.metrics()
    parts = [_heading(description), _progress(run, entries, time.time() if now is None else now)]
    if entries:
        parts.append(f'<div class="charts">{"".join(_curves(entries))}</div>')
    reports = [escape(report) for entry in entries for report in entry.get("reports", [])]
    parts += [f'<p class="note">{report}</p>' for report in reports[-3:]]
    return f'<div class="run">{"".join(parts)}</div>'


def _heading(description: dict[str, Any]) -> str:
    recipe = description.get("recipe", {})
    facts = {
        "recipe": recipe.get("name"),
        "task": recipe.get("task"),
        "data": recipe.get("data"),
        "seed": description.get("seed"),
        "hardware": description.get("hardware"),
        "torch": description.get("versions", {}).get("torch"),
    }
    cells = "".join(f"<span>{name} <b>{escape(str(v))}</b></span>" for name, v in facts.items() if v not in (None, ""))
    return f'<p class="facts">{cells}</p>'


def _progress(run: Run, entries: Sequence[dict[str, Any]], now: float) -> str:
    if not entries:
        return note("No epoch has ended yet; the curves appear with the first one.")
    seconds = max(0.0, now - (run.folder / "metrics.jsonl").stat().st_mtime)
    done = run.weights_path.is_file() or "dev" not in entries[-1]
    scores = [(e["dev"], e) for e in entries if e.get("stage") == entries[-1].get("stage") and "dev" in e]
    kept = [score for score, e in scores if e.get("best")]
    state = "finished" if done else f"last epoch ended {_ago(seconds)} ago"
    best = f"; best development score of stage {entries[-1].get('stage')}: {kept[-1]:.2f}" if kept else ""
    return note(f"{len(entries)} epoch{'s' if len(entries) > 1 else ''}, {state}{best}.")


def _curves(entries: Sequence[dict[str, Any]]) -> list[str]:
    charts = []
    for key, title in (("loss", "training loss"), ("dev", "development score")):
        lines = _by_stage(entries, key)
        if lines:
            charts.append(draw_lines(title, lines, x="epoch", first=1, size=SMALL))
    for key, title in (("rates", "step sizes η"), ("terms", "largest gradient of each term")):
        lines = _by_name(entries, key)
        if lines:
            charts.append(draw_lines(title, lines, x="epoch", first=1, size=SMALL))
    return charts


def _by_stage(entries: Sequence[dict[str, Any]], key: str) -> dict[str, list[float]]:
    """One line for each stage, over its own epochs."""
    stages = dict.fromkeys(str(e.get("stage", "")) for e in entries if key in e)
    return {
        stage: [_value(e.get(key)) if str(e.get("stage", "")) == stage else _NAN for e in entries] for stage in stages
    }


def _by_name(entries: Sequence[dict[str, Any]], key: str) -> dict[str, list[float]]:
    """One line for every rate (by its step) or term; of many rates the first, the last and some in between."""
    held = [e.get(key) or {} for e in entries]
    named = [{f"step {t}": r for t, r in enumerate(h, 1)} if isinstance(h, list) else dict(h) for h in held]
    names = list(dict.fromkeys(name for h in named for name in h))
    if len(names) > _SHOWN and key == "rates":
        names = [names[round(k * (len(names) - 1) / (_SHOWN - 2))] for k in range(_SHOWN - 1)]
    return {name: [_value(h.get(name)) for h in named] for name in names[:_SHOWN]}


def _value(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else _NAN


def _ago(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
