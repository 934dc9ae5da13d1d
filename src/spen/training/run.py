"""The folder of a run: what was done, the state to resume from, and the result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spen.storage import load_weights, save_weights, write_json
from spen.training.fingerprint import differences

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


_OF_A_MODEL = ("model.safetensors", "config.json", "metrics.jsonl", "state")


@dataclass(frozen=True)
class Run:
    """``run.json`` (recipe, seed, versions, hardware), ``fingerprint.json`` (what decides the result),
    ``metrics.jsonl``, ``model.safetensors``, ``state/``."""

    folder: Path

    @property
    def weights_path(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def complete(self) -> bool:
        """Whether the run has ended and has a result. If not, ``fit`` resumes it."""
        return self.weights_path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder. The lock of a process ends with the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "a") as file:
            if fcntl is None:
                yield
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another process trains in {self.folder}: wait until it has ended, or give another folder"
                ) from None
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # workers of a DataLoader hold the file open, too

    @classmethod
    def begin(cls, folder: Path | str, recipe: dict[str, Any], seed: int) -> Run:
        """Open the folder for training. A folder of another recipe or seed is refused, unless that run had not
        finished an epoch."""
        run = cls(Path(folder))
        run.folder.mkdir(parents=True, exist_ok=True)
        now = _as_json({"seed": seed, "recipe": recipe})
        path = run.folder / "run.json"
        if path.exists():
            known = run.description()
            different = differences({key: known.get(key) for key in now}, now)
            if not different:
                return run
            if not run._is_empty():
                raise ValueError(
                    f"{run.folder} holds another run ({different}); give another folder, or delete it to start anew"
                )
            (run.folder / "fingerprint.json").unlink(missing_ok=True)
        elif foreign := [name for name in _OF_A_MODEL if (run.folder / name).exists()]:
            raise ValueError(
                f"{run.folder} is no run and holds {foreign[0]}, which training would replace; give another folder"
            )
        write_json(path, {**now, "versions": versions(), "hardware": hardware(), "commit": commit()}, indent=2)
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """An existing run."""
        run = cls(Path(folder))
        if not (run.folder / "run.json").is_file():
            raise ValueError(f"{folder} is not a run: it has no run.json")
        return run

    def description(self) -> dict[str, Any]:
        """Recipe, seed, versions, hardware, commit."""
        return _read(self.folder / "run.json")

    def compare(self, fingerprint: dict[str, Any], start: str) -> None:
        """Refuse a fingerprint other than that of the run; write it if the run has none yet.

        ``start`` is a hash of the initial weights. If it differs, a message says that the weights are replaced: a
        model that was trained before has other weights.
        """
        path, now = self.folder / "fingerprint.json", _as_json(fingerprint)
        if not path.exists() or self._is_empty():
            if self.complete:
                say(f"{self.folder} has no fingerprint.json: whether it holds the run that is asked for is not known")
            else:
                write_json(path, {"start": start, **now}, indent=2)
            return
        known = _read(path)
        first, processes, processes_now = known.pop("start", None), known.pop("devices", 1), now.pop("devices", 1)
        if different := differences(known, now):
            raise ValueError(
                f"{self.folder} holds another run ({different}); give another folder, or delete it to start anew. If "
                "the difference does not matter, delete its fingerprint.json to go on with it"
            )
        if processes != processes_now:
            say(
                f"the run began with {processes} processes and goes on with {processes_now}: an update sees other "
                "examples"
            )
        if first != start:
            say(f"the weights of the model are not those that {self.folder} began with; those of the run replace them")

    def record(self, entry: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl, unless it has this epoch of this stage already (after a resume)."""
        key = (entry.get("stage"), entry.get("epoch"))
        if any((e.get("stage"), e.get("epoch")) == key for e in self.metrics()):
            return
        with open(self.folder / "metrics.jsonl", "a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # the line before was cut short by a crash
                    file.write(b"\n")
            file.write(json.dumps(entry).encode() + b"\n")

    def note_choices(self, choices: list[dict[str, Any]]) -> None:
        """Write the strategies that ``Auto`` has chosen; ``Auto.from_choice`` uses them again."""
        path = self.folder / "strategy.json"
        if choices and (not path.exists() or _read(path) != choices):
            write_json(path, choices, indent=2)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl except those that a crash cut short."""
        path = self.folder / "metrics.jsonl"
        entries = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return entries

    def state(self, stage: int) -> Path:
        """The file with the training state of a stage."""
        return self.folder / "state" / f"stage-{stage}.safetensors"

    def best(self, stage: int) -> Path:
        """The file with the best weights of a stage."""
        return self.folder / "state" / f"stage-{stage}-best.safetensors"

    def finished(self, stage: int) -> Path:
        """The file that marks a stage as finished and holds its scores."""
        return self.folder / "state" / f"stage-{stage}.done"

    def finish(self, stage: int, scores: dict[str, float | None]) -> None:
        """Mark a stage as finished, with the scores of its best epoch and of its start."""
        write_json(self.finished(stage), scores, indent=2)

    def scores(self, stage: int) -> dict[str, Any]:
        """The scores of a finished stage; empty if its weights were copied from another run."""
        return _read(self.finished(stage)) if self.finished(stage).stat().st_size else {}

    def save(self, weights: dict[str, Tensor]) -> None:
        """Write the result."""
        save_weights(weights, self.weights_path)

    def load(self) -> dict[str, Tensor]:
        """The trained weights."""
        if not self.weights_path.is_file():
            raise ValueError(f"{self.folder} has no trained weights yet: train it to the end, or resume it")
        return load_weights(self.weights_path)

    def _is_empty(self) -> bool:
        """Whether no epoch has been finished in the folder."""
        files = {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()}
        return files <= {"run.json", "fingerprint.json", "lock"}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the result depends on."""
    found = {"python": platform.python_version()}
    for package in ("spen", "torch", "numpy", "pytorch-lightning", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> str:
    """The number of cores or GPUs, and their name."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def commit() -> str | None:
    """The commit of the source; None outside of a checkout."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr)
