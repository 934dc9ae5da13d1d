"""What a step costs beside its arithmetic: host time, idle GPU, synchronisations; and on a CPU the resident memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceilings import wait
from benchmarks.measure import Step, silent
from benchmarks.problems import Problem, deep_prior


def launch_overhead(step: Step, problem: Problem, system: str) -> dict[str, Any]:
    """How long the host takes to ask for a step, how long a step in a row of them takes and the GPU works for it, in
    milliseconds; how often the host waits."""
    device = problem.device
    times = []
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - began))
    wait(device)
    notes: dict[str, Any] = {"host_ms": statistics.median(times)}
    if device.type == "cuda":
        notes["waits"] = _synchronisations(step)
        notes["busy_ms"] = _busy(step, device)
    notes["row_ms"] = _in_a_row(step, device)
    return notes


def _in_a_row(step: Step, device: torch.device, steps: int = 10) -> float:
    """Milliseconds of a step as training takes them: the host asks for the next while the device works."""
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return 1000 * (time.perf_counter() - began) / steps


def _synchronisations(step: Step) -> int:
    """How often a step makes the host wait for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(w.message) for w in caught)


def _busy(step: Step, device: torch.device, steps: int = 3) -> float:
    from torch.profiler import ProfilerActivity, profile

    with silent(), profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            step()
        wait(device)
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if "CUDA" in str(e.device_type())]
    return covered(spans) / 1e6 / steps


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals: kernels of two streams at once keep the GPU busy once."""
    total, end = 0, -1
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def resident_memory(step: Step, problem: Problem, system: str) -> dict[str, Any]:
    """By how many MiB a fresh process grows for this system's steps: everything counts, oneDNN's scratch too."""
    command = [sys.executable, "-m", "benchmarks.overhead", json.dumps(problem.sizes), system]
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False, timeout=600)
    if done.returncode:
        return {"rss_problem": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return {"rss_mib": float(done.stdout.strip().splitlines()[-1])}


def _resident_mib(field: str) -> float:
    """VmRSS, now, or VmHWM, the most so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    """In the fresh process: one tiny problem first, so that imports and thread pools are not counted."""
    from benchmarks.systems import SYSTEMS

    sizes, name = json.loads(sys.argv[1]), sys.argv[2]
    build = SYSTEMS[name].build
    tiny = build(deep_prior("cpu", **{**sizes, "batch": 1, "height": 8, "width": 8, "steps": 2}))
    tiny()
    step = build(deep_prior("cpu", **sizes))
    before = _resident_mib("VmRSS")
    for _ in range(3):
        step()
    print(max(_resident_mib("VmHWM") - before, 0.0))


if __name__ == "__main__":
    main()
