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
from spen.tasks.tables import run_folder

COLUMNS = ("dev", "test", "out_of_domain")


def rows_of(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per recipe and decoder: mean, spread and number of seeds in every column."""
    rows = []
    for name in dict.fromkeys(r["row"] for r in results):
        mine = [r for r in results if r["row"] == name]
        for decoder in ("greedy", "ad3"):
            paper = find_recipe(name).paper.get(decoder, Figures())
            row: dict[str, Any] = {"row": name, "decoder": decoder}
            for column in COLUMNS:
                whole, split = column != "out_of_domain", "dev" if column == "dev" else "test"
                found = [r[split] for r in mine if (r["corpus"] == "whole") == whole and split in r]
                values = [scores["f1"][decoder] for scores in found]
                row[column] = {
                    "mean": _mean(values),
                    "spread": stdev(values) if len(values) > 1 else None,
                    "seeds": len(values),
                    "paper": getattr(paper, column),
                    "violations": _mean([scores["violations"] for scores in found]),
                }
            for key in ("train_seconds", "sentences_per_second"):
                row[key] = _mean([r[key] for r in mine if key in r])
            rows.append(row)
    return rows


def pairs_of(folder: Path, names: Sequence[str], sentences: Sequence[Sentence], split: str) -> list[dict[str, Any]]:
    """F1(a) − F1(b) with AD³ for every two rows that have predictions of the same seeds, with its 95 % interval."""
    rows = {name: run_folder(folder, name, 0).parent for name in names}
    found = {name: sorted(row.glob(f"seed-*/{split}.props.gz")) for name, row in rows.items()}
    files = {name: {path.parent.name: path for path in paths} for name, paths in found.items()}
    most = max(files.values(), key=len, default={}).keys()
    complete = [name for name in names if most and files[name].keys() == most]
    if len(complete) < 2:
        return []
    counts = {name: [counts_of(sentences, read_props(path)) for path in files[name].values()] for name in complete}
    pairs = compare_all(counts).items()
    return [{"a": a, "b": b, "split": split, "seeds": len(most), **asdict(result)} for (a, b), result in pairs]


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def table_text(summary: dict[str, Any]) -> str:
    """The table as plain text."""
    lines = [f"{'':24}" + "".join(f"{c.replace('_', ' '):>22}" for c in COLUMNS) + f"{'violations':>12}"]
    for row in summary["rows"]:
        cells = "".join(f"{_with_paper(row[c]):>22}" for c in COLUMNS)
        violations = row["dev"]["violations"]
        lines.append(f"{system_name(row):24}{cells}{'–' if violations is None else f'{violations:.0f}':>12}")
    return "\n".join(lines)


def system_name(row: dict[str, Any]) -> str:
    """`spen + AD³`."""
    return f"{row['row']} + {'H' if row['decoder'] == 'greedy' else 'AD³'}"


def cell_text(cell: dict[str, Any]) -> str:
    """Mean ± spread."""
    if cell["mean"] is None:
        return "–"
    return f"{cell['mean']:.2f}" + (f" ± {cell['spread']:.2f}" if cell["spread"] is not None else "")


def _with_paper(cell: dict[str, Any]) -> str:
    shown = cell["mean"] is not None and cell["paper"] is not None
    return cell_text(cell) + (f" ({cell['paper']:.1f})" if shown else "")
