"""What it costs Compiled to make sure that a program is of the energy it is used for.

    python -m benchmarks.guard

A training step with the check, and one that takes the program of the step before without it, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.ceilings import precise
from benchmarks.kinds import make
from benchmarks.measure import WARM_UP, in_turns, ratio
from benchmarks.problems import Problem
from benchmarks.results import add_size, parser_of, write_measured
from benchmarks.table import markdown
from spen.gradients import Compiled


@dataclass(frozen=True)
class Cost:
    """Of the check, on one problem."""

    problem: str
    step_ms: float
    microseconds: float  # of the host, a step
    per_cent: float  # of the time of a step


def cost(problem: Problem, *, seconds: float, repeats: int) -> Cost:
    """Of one training step, with and without the check, in turns."""
    strategy = Compiled(patience=0, keep=float(problem.device.type == "cpu"))
    model = problem.with_strategy(strategy)
    check: Any = strategy._program
    last: list[Any] = []
    taken: list[float] = []

    def timed(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        last[:] = [check(*given, **named)]
        taken.append(time.perf_counter() - began)
        return last[0]

    def step(instead: Any) -> None:
        strategy._program = instead  # type: ignore[method-assign]
        problem.gradients(problem.objective(model, problem.x, problem.target))

    for _ in range(WARM_UP):
        step(timed)
    taken.clear()
    calls = {"with": partial(step, timed), "without": partial(step, lambda *_, **__: last[0])}
    times = in_turns(calls, problem.device, seconds=seconds, repeats=repeats)
    per_cent = 100 * (ratio(times["with"], times["without"]) - 1)
    return Cost(problem.name, 1000 * statistics.median(times["with"]), 1e6 * statistics.median(taken), per_cent)


def main(arguments: Sequence[str] | None = None) -> list[Cost]:
    parser = parser_of("guard", __doc__)
    parser.add_argument("--kinds", default="deep-prior,label-sets")
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing a kind")
    parser.add_argument("--repeats", type=int, default=200)
    options = add_size(parser, arguments)
    torch.backends.cudnn.benchmark = True
    found = []
    for kind in options.kinds.split(","):
        with precise("tf32"):
            problem = make(kind, options.device, options.size)
            found.append(cost(problem, seconds=options.seconds, repeats=options.repeats))
        write_measured(options.out, options.device, size=options.size, costs=[asdict(c) for c in found])
    columns = {
        "problem": [c.problem for c in found],
        "ms a step": [f"{c.step_ms:.2f}" for c in found],
        "µs of the check": [f"{c.microseconds:.0f}" for c in found],
        "% of a step, in turns": [f"{c.per_cent:+.2f}" for c in found],
        "% of a step, by the clock": [f"{c.microseconds / c.step_ms / 10:.2f}" for c in found],
    }
    print(markdown(columns))
    return found


if __name__ == "__main__":
    main()
