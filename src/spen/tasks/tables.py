"""Folders of `spen reproduce`: OUT/DATA holds results.json, report.html and a run folder ROW/seed-N for every run."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["merge_runs", "run_folder"]


def run_folder(folder: Path, row: str, seed: int) -> Path:
    """The run of one row with one seed below OUT/DATA; changed options of a row stay legible in its name."""
    return folder / row.replace(":", ",").replace("/", "-") / f"seed-{seed}"


def merge_runs(source: Path, target: Path, result: str) -> None:
    """Copy the runs below `source` that have a file `result` to the same places below `target`; existing ones stay."""
    for path in sorted(source.glob(f"**/seed-*/{result}")):
        run = target / path.parent.relative_to(source)
        if not (run / result).exists():
            shutil.copytree(path.parent, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
