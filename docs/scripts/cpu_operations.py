"""Why programs are rewritten for a CPU, and not fused: python docs/scripts/cpu_operations.py

Milliseconds of single operations of the DeepPrior's training step in two forms each, and of the step itself at T = 3
with and without torch.compile: the best of many, taken in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from benchmarks.by_hand import unrolled_loss
from benchmarks.problems import deep_prior
from spen.gradients import Compiled

aten = torch.ops.aten
OPTIONS = ([1, 1], [3, 3], [1, 1], False, [0, 0], 1)


def best(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The shortest processor time of each."""
    found = dict.fromkeys(calls, float("inf"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, call in calls.items():
            began = time.process_time()
            call()
            found[name] = min(found[name], 1000 * (time.process_time() - began))
    return found


def operations() -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 32, 48, 64), torch.randn(32, 32, 7, 7)
    last = {"memory_format": torch.channels_last}
    x_last, weight_last = x.clone(**last), weight.clone(**last)

    return {
        "convolution 32 -> 32": lambda: aten.convolution(x, weight, None, *OPTIONS),
        "convolution 32 -> 32, channels-last": lambda: aten.convolution(x_last, weight_last, None, *OPTIONS),
    }


def steps() -> dict[str, Callable[[], object]]:
    problem = deep_prior("cpu", batch=2, height=48, width=64, steps=3)
    found: dict[str, Callable[[], object]] = {"plain PyTorch": lambda: problem.gradients(unrolled_loss(problem))}
    for name, fuse in (("kept, rewritten", False), ("kept, fused", True)):
        model = problem.with_strategy(Compiled(keep=True, fuse=fuse, patience=0))
        found[name] = lambda m=model: problem.gradients(problem.objective(m, problem.x, problem.target))  # type: ignore[misc]
    return found


if __name__ == "__main__":
    for calls in (operations(), steps()):
        for call in calls.values():
            call()
        for name, milliseconds in best(calls, 20.0).items():
            print(f"{name:36s} {milliseconds:8.2f} ms", flush=True)
