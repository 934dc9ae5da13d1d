"""Run suites within a time budget: every system on every problem, each row alone, failures named and not fatal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.by_hand import reference_gradients
from benchmarks.ceilings import Ceilings, precise
from benchmarks.measure import Outcome, Step, errors, measure, release
from benchmarks.problems import Problem
from benchmarks.results import TOLERANCE, Results, Row, Skip
from benchmarks.systems import System

Probe = Callable[[Step, Problem, str], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A problem and the systems that are measured on it."""

    make: Callable[[], Problem]
    systems: list[System]
    compare: bool = True  # with the reference gradients
    probe: Probe | None = None  # another look at each system, for the notes of its row


@dataclass
class Budget:
    """Seconds for the whole run, and for the timing of one row."""

    seconds: float
    row_seconds: float
    repeats: int
    references: tuple[str, ...] = ("float64", "float32")  # precisions to try
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)


def run_case(suite: str, case: Case, results: Results, ceilings: Ceilings | None, budget: Budget) -> None:
    """Measure all systems of a case; rows and skips go to the results as they come."""
    if budget.left <= 0:
        _skip_all(suite, case, results, "the time was up")
        return
    try:
        problem = case.make()
        device = problem.device
        print(f"{suite}: {problem.name}, {_sizes(problem)}", flush=True)
        reference = _reference(problem, results, suite, budget) if case.compare else None
        kernels = {} if ceilings is None else _kernels(problem)
    except RuntimeError as error:
        _skip_all(suite, case, results, one_line(error))
        return
    for system in case.systems:
        if budget.left <= 0:
            results.add(Skip(suite, problem.name, problem.sizes, system.name, "the time was up"))
            continue
        try:
            outcome = run_system(system, problem, budget, case.probe)
        except Exception as error:  # one row must not end the run
            skip = Skip(suite, problem.name, problem.sizes, system.name, one_line(error))
            print(f"  {system.name:34s} skipped: {skip.reason}", flush=True)
            results.add(skip)
        else:
            row = row_of(suite, problem, system, outcome, reference, ceilings, kernels)
            print("  " + text_of(row), flush=True)
            results.add(row)
            del outcome
        release(device)


def run_system(system: System, problem: Problem, budget: Budget, probe: Probe | None = None) -> Outcome:
    """One row's measurement."""
    system.require(problem.device)
    if system.outside is not None:
        release(problem.device)
        return system.outside(problem, budget.left, budget.repeats)
    precision = precision_of(system, problem)
    with precise(precision):
        seconds = min(budget.row_seconds, max(budget.left, 1.0))
        return measure(
            lambda: system.build(problem),
            problem.device,
            seconds=seconds,
            repeats=budget.repeats,
            probe=None if probe is None else lambda step: probe(step, problem, system.name),
        )


def row_of(
    suite: str,
    problem: Problem,
    system: System,
    outcome: Outcome,
    reference: list[Tensor] | None,
    ceilings: Ceilings | None,
    kernels: dict[str, float],
) -> Row:
    """The measurement beside what it is judged by."""
    precision = precision_of(system, problem)
    row = Row(
        suite,
        problem.name,
        problem.sizes,
        system.name,
        precision,
        milliseconds=1000 * outcome.median,
        spread_ms=1000 * outcome.spread,
        best_ms=1000 * min(outcome.seconds),
        repeats=len(outcome.seconds),
        peak_mib=outcome.peak_bytes / 2**20,
        setup_mib=None if outcome.setup_bytes is None else outcome.setup_bytes / 2**20,
        setup_seconds=outcome.setup_seconds,
        notes=outcome.notes,
    )
    if reference is not None:
        row.error, row.worst_error = errors(outcome.gradients, reference)
        row.agrees = row.error <= TOLERANCE.get(precision, 1e-2)
    if ceilings is not None and problem.work is not None and precision in ceilings.rates:
        row.floor_ms = 1000 * ceilings.floor(problem.work, precision)
        row.kernels_ms = kernels.get(precision)
    return row


def text_of(row: Row) -> str:
    """One line for the terminal."""
    error = "" if row.error is None else f"  error {row.error:.0e} (worst {row.worst_error:.0e})"
    floor = "" if row.floor_ms is None else f"  {row.milliseconds / row.floor_ms:6.1f} × floor"
    kernels = "" if row.kernels_ms is None else f"  {row.milliseconds / row.kernels_ms:5.2f} × kernels"
    wrong = "  DISAGREES" if row.agrees is False else ""
    notes = "".join(f"  {key} {value:.3g}" for key, value in row.notes.items() if isinstance(value, int | float))
    numbers = f"{row.milliseconds:10.2f} ± {row.spread_ms:.2f} ms {row.peak_mib:10.1f} MiB"
    return f"{row.system:34s} {numbers}{error}{floor}{kernels}{notes}{wrong}"


def precision_of(system: System, problem: Problem) -> str:
    """TF32 exists on GPUs alone."""
    return "float32" if problem.device.type != "cuda" and system.precision == "tf32" else system.precision


def one_line(error: Exception) -> str:
    """The first line of a message, with a name for running out of memory."""
    text = " ".join((str(error).strip().splitlines() or [""])[0].split())
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory: {text[:120]}"
    return text[:240] or type(error).__name__


def _reference(problem: Problem, results: Results, suite: str, budget: Budget) -> list[Tensor] | None:
    began = time.monotonic()
    try:
        reference, how = reference_gradients(problem, budget.references)
    except RuntimeError as error:
        results.add(Skip(suite, problem.name, problem.sizes, "reference gradients", one_line(error)))
        return None
    finally:
        release(problem.device)
    print(f"  reference gradients in {how}, {time.monotonic() - began:.1f} s", flush=True)
    return reference


def _kernels(problem: Problem) -> dict[str, float]:
    """Milliseconds of the products alone, by precision."""
    if problem.work is None:
        return {}
    found = {}
    for precision in ("tf32", "bf16") if problem.device.type == "cuda" else ("float32",):
        try:
            seconds = problem.work.kernels(problem.device, precision)
        except RuntimeError:
            continue
        if seconds is not None:
            found[precision] = 1000 * seconds
    release(problem.device)
    return found


def _skip_all(suite: str, case: Case, results: Results, reason: str) -> None:
    for system in case.systems:
        results.add(Skip(suite, "", {}, system.name, reason))


def _sizes(problem: Problem) -> str:
    return ", ".join(f"{key} {value}" for key, value in problem.sizes.items())
