"""Folders of `spen reproduce`: OUT/DATA holds results.json, report.html and a run folder ROW/seed-N for every run."""

from __future__ import annotations

import shutil
from pathlib import Path


def run_folder(folder: Path, row: str, seed: int) -> Path:
    """The run of one row with one seed below OUT/DATA; changed options of a row stay legible in its name."""
    return folder / row.replace(":", ",").replace("/", "-") / f"seed-{seed}"


def merge_runs(source: Path, out: Path, data: str, result: str) -> None:
    """Copy the runs of SOURCE/DATA that have a file `result` to the same places below OUT/DATA; existing ones stay."""
    if not source.is_dir():
        raise ValueError(f"{source} is no folder to merge")
    for path in sorted((source / data).glob(f"**/seed-*/{result}")):
        run = out / path.parent.relative_to(source)
        if not (run / result).exists():
            shutil.copytree(path.parent, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
