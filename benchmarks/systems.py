"""Every way to take a training step, by name. A row more is three lines:

    @system("spen TrainingStep")
    def training_step(problem: Problem) -> Step:
        return TrainingStep(problem.with_strategy(FiniteDifference()), ...)

A system gets a problem and returns a function of no arguments that makes one full training step and returns the
gradients, in the order of ``problem.parameters()``. It may compile, capture or measure while it is built and called
for the first time: set-up is reported apart.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.by_hand import unrolled_loss
from benchmarks.measure import Outcome, Step
from benchmarks.problems import Problem
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
)

Build = Callable[[Problem], Step]


class Unavailable(RuntimeError):
    """A system that cannot run here or on this problem; the text says why."""


@dataclass(frozen=True)
class System:
    """How to build a step, in which precision it computes on a GPU, and what must be installed for it."""

    name: str
    build: Build
    precision: str = "tf32"
    needs: str | None = None
    outside: Callable[[Problem, float, int], Outcome] | None = None  # measured in a process of its own

    def require(self, device: torch.device) -> None:
        """Say in one line what is missing."""
        if self.precision == "bf16" and device.type != "cuda":
            raise Unavailable("bf16 products are measured on a GPU")
        if self.needs is None:
            return
        try:
            importlib.import_module(self.needs)
        except Exception as error:  # an old package may fail in any way when it is imported
            reason = " ".join(str(error).split())
            raise Unavailable(f"{self.needs} cannot be imported: {reason}") from None


SYSTEMS: dict[str, System] = {}


def system(name: str, *, precision: str = "tf32", needs: str | None = None) -> Callable[[Build], Build]:
    """Register a way to build a step under a name."""

    def register(build: Build) -> Build:
        if name in SYSTEMS:
            raise ValueError(f"there are two systems called {name!r}")
        SYSTEMS[name] = System(name, build, precision, needs)
        return build

    return register


# The strategies of spen in the order of the tables: name, how to make one, the precision of its products on a GPU.
STRATEGIES: list[tuple[str, Callable[[], GradientStrategy], str]] = [
    ("Exact", Exact, "tf32"),
    ("Checkpointed", Checkpointed, "tf32"),
    ("FiniteDifference", FiniteDifference, "tf32"),
    ("FiniteDifference, two passes", lambda: FiniteDifference(doubled=False), "tf32"),
    ("ForwardOverReverse", ForwardOverReverse, "tf32"),
    ("Compiled", Compiled, "tf32"),
    ("Compiled, 16 rows", lambda: Compiled(rows=16), "tf32"),
    ("Compiled, 8 rows", lambda: Compiled(rows=8), "tf32"),
    ("Compiled, 2 rows", lambda: Compiled(rows=2), "tf32"),
    ("Compiled, kept", lambda: Compiled(keep=True), "tf32"),
    ("Compiled, three quarters kept", lambda: Compiled(keep=0.75), "tf32"),
    ("Compiled, reverse over reverse", lambda: Compiled(Checkpointed()), "tf32"),
    ("Compiled, reverse over reverse, kept", lambda: Compiled(Checkpointed(), keep=True), "tf32"),
    ("Compiled, bf16", lambda: Compiled(precision=torch.bfloat16), "bf16"),
    ("Compiled, bf16, 16 rows", lambda: Compiled(rows=16, precision=torch.bfloat16), "bf16"),
    ("Compiled, bf16, 2 rows", lambda: Compiled(rows=2, precision=torch.bfloat16), "bf16"),
    ("Auto", lambda: Auto(patience=0), "tf32"),
]


def _by_strategy(strategy: Callable[[], GradientStrategy]) -> Build:
    def build(problem: Problem) -> Step:
        made = strategy()
        rows = getattr(made, "rows", None)
        if rows is not None and rows >= problem.sizes["batch"]:
            raise Unavailable(f"the batch has no more than {rows} rows: the same as Compiled")
        model = problem.with_strategy(made)
        return lambda: problem.gradients(problem.objective(model, problem.x, problem.target))

    return build


@system("plain PyTorch")
def plain(problem: Problem) -> Step:
    return lambda: problem.gradients(unrolled_loss(problem))


@system("torch.utils.checkpoint")
def checkpointed(problem: Problem) -> Step:
    return lambda: problem.gradients(unrolled_loss(problem, checkpointed=True))


for _name, _strategy, _precision in STRATEGIES:
    system(f"spen {_name}", precision=_precision)(_by_strategy(_strategy))


def find(names: list[str]) -> list[System]:
    """Systems by name; a wrong name gets the list."""
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise ValueError(f"there is no system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return [SYSTEMS[name] for name in names]


import benchmarks.generic  # noqa: E402  (registers what torch.compile does, after spen's own)
import benchmarks.peers  # noqa: E402, F401  (registers the peers)
