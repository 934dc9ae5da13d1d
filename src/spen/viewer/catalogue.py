"""What a visitor may open: models of the package by task, and the runs below the given folders.

A visitor sends the name of an entry, never a path, and other names are refused, so nothing else on the machine can be
read. Folders are scanned on each request, so that a run appears as soon as it begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from spen.models import find_model, open_model, shipped
from spen.tasks.task import Opened, Task
from spen.training import Run

_DEEPEST, _MOST, _CACHED = 6, 500, 4
_SKIPPED = {"state", "cache", "__pycache__"}


class Catalogue:
    """Entries by name. `folders` are run folders, or folders with runs somewhere below."""

    def __init__(self, folders: Sequence[Path | str] = ()) -> None:
        self.folders = [Path(folder) for folder in folders]
        # By place and time of the last change: a run is loaded again when its files have changed.
        self._load = lru_cache(maxsize=_CACHED)(lambda place, changed: open_model(place))
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder; name a run, or a folder with runs below it")
            if not _scan([folder]):
                raise ValueError(f"{folder} holds no run: there is no run.json in it or below it")

    def runs(self) -> list[str]:
        """Every run, finished or not, the most recent first."""
        found = _scan(self.folders)
        return sorted(found, key=lambda name: (-_changed(found[name]), name))

    def run(self, name: str | None) -> Run:
        """A run by its name in the list."""
        if not name:
            raise ValueError("no folder of runs was named; `spen view RUNS` shows the runs below RUNS")
        found = _scan(self.folders)
        if name not in found:
            raise ValueError(f"there is no run {name!r} on this page")
        return Run.open(found[name])

    def models(self, task: Task, *, runs_first: bool = False) -> list[str]:
        """Names of the task's models: those of the package, then finished runs; ``runs_first`` reverses it."""
        found = _scan(self.folders)
        trained = sorted(name for name, folder in found.items() if _is_model(folder, task))
        packaged = [name for name, owner in _packaged().items() if owner == task.name]
        return [*trained, *packaged] if runs_first else [*packaged, *trained]

    def open(self, task: Task, name: str, *, what: str = "model") -> Opened:
        """A model by its name in the list of the task; `what` is its kind in the error message."""
        folder = _scan(self.folders).get(name)
        known = _packaged().get(name) == task.name if folder is None else _is_model(folder, task)
        if not known:
            raise ValueError(f"there is no {what} {name!r} on this page")
        return self._load(name, 0) if folder is None else self._load(str(folder), _changed(folder))


def _scan(folders: Sequence[Path]) -> dict[str, Path]:
    """Run folders by their path as given. Links are not followed: they may lead out of the folders."""
    found: dict[str, Path] = {}
    for root in folders:
        above = len(root.parts)
        for place, below, files in os.walk(root, followlinks=False):
            folder = Path(place)
            if "run.json" in files:
                found[str(folder)] = folder
            # A run holds no runs.
            deep = "run.json" in files or len(folder.parts) - above >= _DEEPEST or len(found) >= _MOST
            below[:] = [] if deep else sorted(d for d in below if d not in _SKIPPED and not d.startswith("."))
    return found


def _is_model(folder: Path, task: Task) -> bool:
    config = folder / "config.json"
    try:
        return _task_of(folder, config.stat().st_mtime_ns) == task.name and task.can_open(folder)
    except OSError:  # no config.json: the run has not begun to train, or its model is not one of a task
        return False


@lru_cache(maxsize=4 * _MOST)
def _task_of(folder: Path, changed: int) -> str:
    """The task that config.json names; cached until the file changes, because the file may be large."""
    try:
        return find_model(folder).task
    except ValueError:
        return ""


@cache
def _packaged() -> dict[str, str]:
    """The models of the package, with the task of each."""
    return {name: find_model(name).task for name in shipped()}


def _changed(folder: Path) -> int:
    """When the newest of the run's files was written, in nanoseconds."""
    newest = 0
    for path in folder.glob("*"):
        try:
            newest = max(newest, path.stat().st_mtime_ns) if path.is_file() else newest
        except OSError:  # a temporary file that is gone by now
            continue
    return newest
