"""Plain PyTorch, Exact and Auto in turns: a machine whose speed varies slows all of them alike.

python -m benchmarks.turns             # the DeepPrior, batch 2 of 48×64, T = 20 and 3; a minute on two cores
"""

from __future__ import annotations

from statistics import median

from benchmarks.measure import in_turns, ratio
from benchmarks.problems import deep_prior
from benchmarks.systems import find

NAMES = ["plain PyTorch", "spen Exact", "spen Auto"]
ROUNDS = {20: 25, 3: 100}


def main(rounds_of: dict[int, int] = ROUNDS, height: int = 48, width: int = 64) -> None:
    for steps, rounds in rounds_of.items():
        problem = deep_prior("cpu", batch=2, height=height, width=width, steps=steps)
        systems = {found.name: found.build(problem) for found in find(NAMES)}
        for step in systems.values():  # Auto chooses, programs are traced
            for _ in range(3):
                step()
        times = in_turns(systems, problem.device, seconds=float("inf"), repeats=rounds)
        for name, taken in times.items():
            share = ratio(taken, times[NAMES[0]])
            print(f"T = {steps}: {name:14} median {1000 * median(taken):6.1f} ms, {share:.2f} of plain PyTorch's turn")


if __name__ == "__main__":
    main()
