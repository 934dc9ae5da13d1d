"""What a run leaves behind: one JSON file, rewritten after every row, so that a run that is killed loses nothing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from spen.storage import write_whole

SCHEMA = 1
TOLERANCE = {"bf16": 2e-2}
"""The largest relative gradient error of a row that agrees; 1e-2 where nothing else stands here."""


@dataclass
class Row:
    """One system on one problem."""

    suite: str
    problem: str
    sizes: dict[str, int]
    system: str
    precision: str
    milliseconds: float  # the median
    spread_ms: float  # half the distance between the quartiles
    best_ms: float
    repeats: int
    peak_mib: float
    setup_mib: float | None = None
    setup_seconds: float | None = None
    error: float | None = None  # ‖g − g*‖ / ‖g*‖; None where no reference fits
    worst_error: float | None = None  # of a single parameter
    agrees: bool | None = None
    floor_ms: float | None = None
    kernels_ms: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Skip:
    """A system that was not measured, and why, in one line."""

    suite: str
    problem: str
    sizes: dict[str, int]
    system: str
    reason: str


class Results:
    """Rows and skips of one run; ``path`` is rewritten after each, whole or not at all."""

    def __init__(self, path: Path, *, device: str, command: str) -> None:
        self.path = path
        self.head: dict[str, Any] = {"schema": SCHEMA, "command": command, "machine": machine(device)}
        self.head["versions"] = versions()
        self.head["began"] = time.strftime("%Y-%m-%dT%H:%M:%S")
        self.rows: list[Row] = []
        self.skipped: list[Skip] = []

    def add(self, entry: Row | Skip) -> None:
        (self.rows if isinstance(entry, Row) else self.skipped).append(entry)  # type: ignore[arg-type]
        self.write()

    def note(self, **entries: Any) -> None:
        """Something about the whole run: ceilings, settings."""
        self.head.update(entries)
        self.write()

    def write(self) -> None:
        rows, skipped = [asdict(r) for r in self.rows], [asdict(s) for s in self.skipped]
        write_results(self.path, {**self.head, "rows": rows, "skipped": skipped})


def write_results(path: Path, whole: dict[str, Any]) -> None:
    """A JSON file, written completely or not at all."""
    write_whole(path, json.dumps(whole, indent=1, default=str) + "\n")


def write_measured(folder: Path, device: str, **found: Any) -> None:
    """results.json of a script: the figures, with the machine and the versions they were measured on."""
    head = {"command": command_line(), "machine": machine(device), "versions": versions()}
    write_results(folder / "results.json", {**head, **found})


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """The options that all scripts share: --device and --out; the first line of ``about`` describes the script."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(about or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="the folder of results.json")
    return parser


def add_size(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse with --size, which is full on a GPU and small on a CPU if not given."""
    parser.add_argument("--size", choices=["full", "small", "toy"], help="full on a GPU, small on a CPU if not given")
    options = parser.parse_args(arguments)
    options.size = options.size or ("full" if options.device == "cuda" else "small")
    return options


def read(path: Path) -> dict[str, Any]:
    """A results file, checked."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    if whole.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {whole.get('schema')!r}; this version reads {SCHEMA}")
    return whole


def read_all(paths: Sequence[Path]) -> dict[str, Any]:
    """Several runs on one machine as one: their rows and skips together, every command named."""
    first, *others = (read(path) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        if (other["machine"], other["versions"]) != (first["machine"], first["versions"]):
            raise ValueError(f"{path} was measured on another machine or with other versions than {paths[0]}")
        first["rows"] += other["rows"]
        first["skipped"] += other["skipped"]
        first["command"] += f"`, `{other['command']}"
    return first


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {
        "device": device,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpu_gib": round(properties.total_memory / 2**30, 1)}
        found["driver"] = _driver()
    return found


def versions() -> dict[str, str]:
    """Of Python, torch, CUDA, spen and the peers that are installed here."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    for name in ("spen", "numpy", "triton", "jax", "torchopt", "higher"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def command_line() -> str:
    script = Path(sys.argv[0]).stem
    module = "benchmarks" if script in ("__main__", "") else f"benchmarks.{script}"
    return " ".join(["python -m", module, *sys.argv[1:]])
