"""The folder of a run: everything needed to know what was done, to go on with it, and to use the result."""

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

from spen.storage import write_json
from spen.training.checkpoints import load_weights, save_weights
from spen.training.describing import in_words

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


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
        """Whether the run has come to its end: it has a result. If not, ``fit`` goes on with it."""
        return self.weights_path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder; the lock of a process that was killed is gone with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self._lock, "a") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise ValueError(
                        f"another process trains in {self.folder}: wait until it has ended, or give another folder"
                    ) from None
            try:
                yield
            finally:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_UN)  # workers of a DataLoader hold the file open, too

    @classmethod
    def begin(cls, folder: Path | str, recipe: dict[str, Any], seed: int) -> Run:
        """Open the folder for training. A folder that holds another recipe or seed is refused, not overwritten, unless
        that run had not got to the end of an epoch."""
        run = cls(Path(folder))
        run.folder.mkdir(parents=True, exist_ok=True)
        asked = _as_json({"seed": seed, "recipe": recipe})
        if run._file.exists():
            known = run.description()
            other = in_words({key: known.get(key) for key in asked}, asked)
            if not other:
                return run
            if not run._is_empty():
                raise ValueError(
                    f"{run.folder} holds another run ({other}); give another folder, or delete it to start anew"
                )
            run._fingerprint.unlink(missing_ok=True)
        write_json(run._file, {**asked, "versions": versions(), "hardware": hardware(), "commit": commit()}, indent=2)
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """An existing run."""
        run = cls(Path(folder))
        if not run._file.is_file():
            raise ValueError(f"{folder} is not a run: it has no run.json")
        return run

    def description(self) -> dict[str, Any]:
        """Recipe, seed, versions, hardware, commit."""
        return _read(self._file)

    def compare(self, fingerprint: dict[str, Any], start: str) -> None:
        """Refuse a fingerprint other than the one that the run was begun with; the first one is written down.

        ``start`` is a hash of the first weights. Others are no reason to refuse, because a model that comes back
        trained has others; a line says that they are replaced.
        """
        asked = _as_json(fingerprint)
        if not self._fingerprint.exists() or self._is_empty():
            if self.weights_path.exists():
                say(f"{self.folder} has no fingerprint.json: whether it holds the run that is asked for is not known")
            else:
                write_json(self._fingerprint, {"start": start, **asked}, indent=2)
            return
        known = _read(self._fingerprint)
        first, then, now = known.pop("start", None), known.pop("devices", 1), asked.pop("devices", 1)
        if other := in_words(known, asked):
            raise ValueError(
                f"{self.folder} holds another run ({other}); give another folder, or delete it to start anew. If the "
                "difference does not matter, delete its fingerprint.json to go on with it"
            )
        if then != now:
            say(f"the run began with {then} processes and goes on with {now}: an update sees other examples")
        if first != start:
            say(f"the weights of the model are not those that {self.folder} began with; those of the run replace them")

    def record(self, entry: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl, unless this epoch of this stage is there already (after a resume)."""
        key = (entry.get("stage"), entry.get("epoch"))
        if any((e.get("stage"), e.get("epoch")) == key for e in self.metrics()):
            return
        with open(self.folder / "metrics.jsonl", "a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line cut short by a crash must not swallow this one
                    file.write(b"\n")
            file.write(json.dumps(entry).encode() + b"\n")

    def note_choices(self, choices: list[dict[str, Any]]) -> None:
        """Write down which strategies ``Auto`` has chosen; ``Auto.from_choice`` uses them again."""
        path = self.folder / "strategy.json"
        if choices and (not path.exists() or _read(path) != choices):
            write_json(path, choices, indent=2)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a line cut short by a crash is left out."""
        path = self.folder / "metrics.jsonl"
        entries = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return entries

    def state(self, stage: int) -> Path:
        """Where the training state of a stage is kept."""
        return self.folder / "state" / f"stage-{stage}.safetensors"

    def best(self, stage: int) -> Path:
        """Where the best weights of a stage are kept."""
        return self.folder / "state" / f"stage-{stage}-best.safetensors"

    def finished(self, stage: int) -> Path:
        """A file that says a stage is done, and how it was scored."""
        return self.folder / "state" / f"stage-{stage}.done"

    def finish(self, stage: int, scores: dict[str, float | None]) -> None:
        """Say that a stage is done: the score of its best epoch, and that of its start as it predicts."""
        write_json(self.finished(stage), scores, indent=2)

    def scores(self, stage: int) -> dict[str, Any]:
        """The scores of a stage that is done; none if its weights were taken over from another run."""
        return _read(self.finished(stage)) if self.finished(stage).stat().st_size else {}

    def save(self, weights: dict[str, Tensor]) -> None:
        """The result."""
        save_weights(weights, self.weights_path)

    def load(self) -> dict[str, Tensor]:
        """The trained weights."""
        if not self.weights_path.is_file():
            raise ValueError(f"{self.folder} has no trained weights yet: train it to the end, or resume it")
        return load_weights(self.weights_path)

    def _is_empty(self) -> bool:
        """Nothing but what was asked for is in the folder."""
        return {p for p in self.folder.rglob("*") if p.is_file()} <= {self._file, self._fingerprint, self._lock}

    @property
    def _file(self) -> Path:
        return self.folder / "run.json"

    @property
    def _lock(self) -> Path:
        return self.folder / "lock"

    @property
    def _fingerprint(self) -> Path:
        return self.folder / "fingerprint.json"


def versions() -> dict[str, str]:
    """What this was run with."""
    found = {"python": platform.python_version()}
    for package in ("spen", "torch", "numpy", "pytorch-lightning", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> str:
    """The processor or the graphics card."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def commit() -> str | None:
    """The commit of the source, where it is a checkout."""
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
    """A line for the person at the terminal, beside any progress bar."""
    print(text, file=sys.stderr)
