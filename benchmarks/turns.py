"""Plain PyTorch, Exact and Auto in turns: a machine whose speed wanders slows all of them alike.

python -m benchmarks.turns             # the DeepPrior, batch 2 of 48×64, T = 20 and 3; a minute on two cores
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.problems import deep_prior
from benchmarks.systems import find

NAMES = ["plain PyTorch", "spen Exact", "spen Auto"]
ROUNDS = {20: 25, 3: 100}


def main(rounds_of: dict[int, int] = ROUNDS, height: int = 48, width: int = 64) -> None:
    for steps, rounds in rounds_of.items():
        problem = deep_prior("cpu", batch=2, height=height, width=width, steps=steps)
        ways = {found.name: found.build(problem) for found in find(NAMES)}
        for step in ways.values():  # Auto chooses, programs are traced
            for _ in range(3):
                step()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, step in ways.items():
                began = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - began)
        plain = times[NAMES[0]]
        for name, taken in times.items():
            ratio = median(t / p for t, p in zip(taken, plain, strict=True))
            print(f"T = {steps}: {name:14} median {1000 * median(taken):6.1f} ms, {ratio:.2f} of plain PyTorch's turn")


if __name__ == "__main__":
    main()
