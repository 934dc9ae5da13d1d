"""Time, peak memory and gradient error of one way to take a training step."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.ceilings import wait

WARM_UP = 5  # a strategy may compile on the second batch of a shape, and rehearse and capture on the fourth
Step = Callable[[], list[Tensor]]
"""A full training step: forward, loss on every iterate, backward. Returns the gradients in the problem's order."""


@dataclass
class Outcome:
    """What was measured of one way."""

    gradients: list[Tensor]
    seconds: list[float]  # of single steps
    peak_bytes: float  # of a step, weights, inputs and gradients not counted
    setup_bytes: float | None = None  # the most that building and the first step needed
    setup_seconds: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, in seconds."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / 2
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / 2


def measure(
    build: Callable[[], Step],
    device: torch.device,
    *,
    seconds: float,
    repeats: int,
    probe: Callable[[Step], dict[str, Any]] | None = None,
) -> Outcome:
    """Build, warm up, then time steps: at least three, then until ``repeats`` are there or ``seconds`` are over.

    ``probe`` is called with the warm step, for further notes. The gradients are those of the last step, after all that
    is compiled or captured.
    """
    release(device)
    before = _held(device)
    _reset_peak(device)
    began = time.perf_counter()
    step = build()
    for _ in range(WARM_UP):
        step()
    wait(device)
    setup_seconds = time.perf_counter() - began
    setup_bytes = _peak(device) - before if device.type == "cuda" else None
    peak = _steady_peak(step, device, before)
    times, processor = _timed(step, device, seconds, repeats)
    notes = {} if probe is None else probe(step)
    if device.type == "cpu":
        notes["cpu_ms"] = 1000 * processor
    gradients = [g.detach().clone() for g in step()]
    return Outcome(gradients, times, peak, setup_bytes, setup_seconds, notes)


def in_turns(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float, repeats: int
) -> dict[str, list[float]]:
    """Seconds of single calls, block by block in turns: a machine whose speed wanders slows all of them alike."""
    blocks = {}
    for name, call in calls.items():
        call()
        blocks[name] = _block(call, device)
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - start > seconds:
            break
        for name, call in calls.items():
            times[name].append(_seconds(call, device, blocks[name]))
    return times


def _seconds(call: Callable[[], object], device: torch.device, count: int) -> float:
    """Of one call, as the mean of so many in a row."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return (time.perf_counter() - began) / count


def _block(call: Callable[[], object], device: torch.device) -> int:
    """How many calls are timed at once: short ones in blocks of 20 ms, as training runs them, without waiting."""
    wait(device)
    return max(1, min(50, int(0.02 / max(_seconds(call, device, 1), 1e-7))))


def ratio(times: list[float], others: list[float]) -> float:
    """The median over the turns of one time over the other."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def _timed(step: Step, device: torch.device, seconds: float, repeats: int) -> tuple[list[float], float]:
    """Seconds of single steps by the clock; the processor's seconds a step, which a busy machine does not stretch."""
    block = _block(step, device)
    times: list[float] = []
    start, processor = time.perf_counter(), time.process_time()
    while len(times) < repeats and (len(times) < 3 or time.perf_counter() - start < seconds):
        times.append(_seconds(step, device, block))
    return times, (time.process_time() - processor) / len(times) / block


def _steady_peak(step: Step, device: torch.device, before: float) -> float:
    """Bytes beyond ``before`` while a step runs that is not the first."""
    if device.type == "cuda":
        _reset_peak(device)
        step()
        wait(device)
        return max(_peak(device) + idle_in_graphs() - before, 0)
    return cpu_peak(step)


def cpu_peak(call: Callable[[], object]) -> float:
    """The most bytes that torch's CPU allocator held at once during a call, beyond what it held before."""
    from torch.profiler import ProfilerActivity, profile

    with silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return float(most)


@contextmanager
def silent() -> Iterator[None]:
    """Without what the profiler's C++ side prints on standard error."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def idle_in_graphs() -> float:
    """Bytes that captured CUDA graphs keep for their replays: no allocator call shows them while one runs."""
    segments = torch.cuda.memory_snapshot()
    private = [s for s in segments if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0)]
    return float(sum(s["total_size"] - s["allocated_size"] for s in private))


def errors(gradients: list[Tensor], reference: list[Tensor]) -> tuple[float, float]:
    """(‖g − g*‖ / ‖g*‖ over all parameters together, the largest of that over single parameters)."""
    if len(gradients) != len(reference):
        raise ValueError(f"{len(gradients)} gradients for {len(reference)} parameters")
    wrong = right = worst = 0.0
    for g, r in zip(gradients, reference, strict=True):
        if g.shape != r.shape:
            raise ValueError(f"a gradient has shape {tuple(g.shape)}, its parameter {tuple(r.shape)}")
        size = float(r.double().square().sum())
        off = float((g.to(r.device).double() - r.double()).square().sum())
        wrong, right = wrong + off, right + size
        if size > 0:
            worst = max(worst, (off / size) ** 0.5)
    if not wrong < float("inf"):  # NaN as well
        return float("inf"), float("inf")
    return (wrong / right) ** 0.5 if right > 0 else wrong**0.5, worst


def release(device: torch.device) -> None:
    """Give back what the last system left on the card."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def _held(device: torch.device) -> float:
    return torch.cuda.memory_allocated(device) + idle_in_graphs() if device.type == "cuda" else 0.0


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
