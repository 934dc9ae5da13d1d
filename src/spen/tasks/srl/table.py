"""Means over seeds, with the paper's numbers beside them, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from spen.tasks.srl.compare import compare_all, counts_of
from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.recipes import Figures, find_recipe
from spen.tasks.srl.sentences import Sentence

__all__ = ["COLUMNS", "LABELS", "pairs_of", "rows_of", "summarise", "table_text"]

COLUMNS = ("dev", "test", "out_of_domain")
LABELS = {"greedy": "H", "ad3": "AD³", "argmax": "argmax"}


def summarise(results: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """{"about", "rows": one per system and decoder, "runs": every evaluation as it is}."""
    return {"about": about, "rows": rows_of(results), "runs": results}


def rows_of(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per recipe and decoder: mean, spread and number of seeds in every column."""
    rows = []
    for name in dict.fromkeys(r["row"] for r in results):
        mine = [r for r in results if r["row"] == name]
        for decoder in ("greedy", "ad3"):
            paper = find_recipe(name).paper.get(decoder, Figures())
            row: dict[str, Any] = {"row": name, "decoder": decoder}
            for column in COLUMNS:
                values, clashes = _column(mine, column, decoder)
                row[column] = _summary(values) | {"paper": getattr(paper, column), "violations": _mean(clashes)}
            for key in ("train_seconds", "sentences_per_second"):
                row[key] = _mean([r[key] for r in mine if key in r])
            rows.append(row)
    return rows


def pairs_of(runs: Path, names: Sequence[str], sentences: Sequence[Sentence], split: str) -> list[dict[str, Any]]:
    """F1(a) − F1(b) with AD³ for every two rows that have predictions of the same seeds, with its 95 % interval."""
    files = {name: sorted(runs.glob(f"{name.replace(':', ',')}-[0-9]*/{split}.props.gz")) for name in names}
    seeds = {name: [path.parent.name.rpartition("-")[2] for path in found] for name, found in files.items()}
    most = max((seeds[name] for name in names), key=len, default=[])
    complete = [name for name in names if most and seeds[name] == most]
    if len(complete) < 2:
        return []
    counts = {name: [counts_of(sentences, read_props(path)) for path in files[name]] for name in complete}
    pairs = compare_all(counts).items()
    return [{"a": a, "b": b, "split": split, "seeds": len(most), **asdict(found)} for (a, b), found in pairs]


def _column(results: list[dict[str, Any]], column: str, decoder: str) -> tuple[list[float], list[float]]:
    whole, split = column != "out_of_domain", "dev" if column == "dev" else "test"
    found = [r[split] for r in results if (r["corpus"] == "whole") == whole and split in r]
    return [e["f1"][decoder] for e in found], [e["violations"] for e in found]


def _summary(values: list[float]) -> dict[str, Any]:
    spread = stdev(values) if len(values) > 1 else None
    return {"mean": _mean(values), "spread": spread, "seeds": len(values)}


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def table_text(summary: dict[str, Any]) -> str:
    """The table as plain text."""
    lines = [f"{'':24}" + "".join(f"{c.replace('_', ' '):>22}" for c in COLUMNS) + f"{'violations':>12}"]
    for row in summary["rows"]:
        cells = "".join(f"{_cell(row[c]):>22}" for c in COLUMNS)
        violations = row["dev"]["violations"]
        lines.append(f"{row['row'] + ' + ' + LABELS[row['decoder']]:24}{cells}{_number(violations):>12}")
    return "\n".join(lines)


def _cell(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "–"
    spread = f" ± {cell['spread']:.2f}" if cell["spread"] is not None else ""
    paper = f" ({cell['paper']:.1f})" if cell["paper"] is not None else ""
    return f"{cell['mean']:.2f}{spread}{paper}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
