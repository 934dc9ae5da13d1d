"""What a visitor may open: models of the package, classical baselines, and the runs below the folders given.

A visitor names an entry, never a path: a name that is not in the list opens nothing, so nothing else on the machine
can be read. Folders are looked through anew each time, so that a run shows up as soon as it begins.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import torch

import spen
from spen.tasks.denoising.baselines import TotalVariation, fill_pyramid
from spen.tasks.denoising.experiment import Denoise
from spen.tasks.denoising.predict import load_system
from spen.tasks.denoising.priors import Observation
from spen.tasks.shipped import about, shipped
from spen.tasks.srl.predict import Labeller
from spen.training import Run

__all__ = ["BASELINES", "Catalogue"]

T = TypeVar("T")

TV = TotalVariation(0.06)
"""What `spen train tv --data rooms` chooses by development rooms."""

BASELINES = {"tv": f"total variation, weight {TV.weight}", "reading": "the reading, its holes filled"}
_DEEPEST, _MOST, _KEPT = 6, 500, 4
_PASSED_OVER = {"state", "cache", "__pycache__"}


@dataclass(frozen=True)
class _Found:
    """A run folder and its task."""

    folder: Path
    task: str


class Catalogue:
    """Entries by name. `folders` are run folders, or folders with runs somewhere below."""

    def __init__(self, folders: Sequence[Path | str] = ()) -> None:
        self.folders = [Path(folder) for folder in folders]
        self._kept: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = Lock()
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder; name a run, or a folder with runs below it")
            if not _scan([folder]):
                raise ValueError(f"{folder} holds no run: there is no run.json in it or below it")

    def runs(self) -> list[str]:
        """Every run, finished or not, the most recent first."""
        found = _scan(self.folders)
        return sorted(found, key=lambda name: (-_changed(found[name].folder), name))

    def run(self, name: str) -> Run:
        """A run by its name in the list."""
        found = _scan(self.folders)
        if name not in found:
            raise ValueError(f"there is no run {name!r} on this page")
        return Run.open(found[name].folder)

    def denoisers(self) -> list[str]:
        """Systems that denoise: of the package, trained, classical."""
        return [*_of_package("denoising"), *self._trained("denoising"), *BASELINES]

    def labellers(self) -> list[str]:
        """Systems that label roles."""
        return [*self._trained("srl"), *_of_package("srl")]

    def denoiser(self, name: str) -> tuple[Denoise, spen.SPEN | None]:
        """A denoiser by its name in the list."""
        if name not in self.denoisers():
            raise ValueError(f"there is no denoising system {name!r} on this page")
        if name == "tv":
            return _total_variation, None
        if name == "reading":
            return _filled, None
        return self._load(name, load_system)

    def labeller(self, name: str) -> Labeller:
        """A labeller by its name in the list."""
        if name not in self.labellers():
            raise ValueError(f"there is no role labelling system {name!r} on this page")
        return self._load(name, Labeller.open)

    def _trained(self, task: str) -> list[str]:
        found = _scan(self.folders)
        return sorted(name for name, run in found.items() if run.task == task and _usable(run.folder))

    def _load(self, name: str, load: Callable[[str], T]) -> T:
        """Load once, and again when the weights have changed; the few used last are kept."""
        found = _scan(self.folders).get(name)
        place, stamp = (name, 0) if found is None else (str(found.folder), _changed(found.folder))
        with self._lock:
            if (name, stamp) in self._kept:
                self._kept.move_to_end((name, stamp))
                return self._kept[name, stamp]
        loaded = load(place)
        with self._lock:
            self._kept[name, stamp] = loaded
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return loaded


def _scan(folders: Sequence[Path]) -> dict[str, _Found]:
    """Runs by the path under which the command line knows them. Links are not followed: they may lead anywhere."""
    found: dict[str, _Found] = {}
    for root in folders:
        depth = len(root.parts)
        for place, below, files in os.walk(root, followlinks=False):
            folder = Path(place)
            if "run.json" in files:
                found[str(folder)] = _Found(folder, _task(folder))
            # A run holds no runs.
            deep = "run.json" in files or len(folder.parts) - depth >= _DEEPEST or len(found) >= _MOST
            below[:] = [] if deep else sorted(d for d in below if d not in _PASSED_OVER and not d.startswith("."))
    return found


def _task(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run.json").read_text(encoding="utf-8"))["recipe"].get("task", ""))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""


def _usable(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("model.safetensors", "chosen.json", "forest.safetensors"))


def _changed(folder: Path) -> int:
    """When the newest of the run's files was written, in nanoseconds."""
    names = ("run.json", "metrics.jsonl", "model.safetensors", "chosen.json", "forest.safetensors")
    times = [(folder / name).stat().st_mtime_ns for name in names if (folder / name).is_file()]
    return max(times, default=0)


def _of_package(task: str) -> list[str]:
    return [name for name in shipped() if about(name)["task"] == task]


def _total_variation(x: Observation) -> torch.Tensor:
    images = zip(x.image[:, 0].numpy(), x.seen[:, 0].numpy() > 0, strict=True)
    return torch.stack([torch.from_numpy(TV.denoise(image, seen)) for image, seen in images])[:, None]


def _filled(x: Observation) -> torch.Tensor:
    return fill_pyramid(x.image, x.seen)
