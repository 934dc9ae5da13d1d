"""The six kinds of energies, and what torch.compile and both kinds of programs make of them, by value."""

from __future__ import annotations

import pytest
import torch

from benchmarks import generic
from benchmarks.by_hand import reference_gradients
from benchmarks.kinds import KINDS, make
from benchmarks.measure import errors
from benchmarks.problems import Problem
from benchmarks.suites import SUITES, TOY
from benchmarks.systems import SYSTEMS, Unavailable

REVERSE, FORWARD = "torch.compile, reverse over reverse", "torch.compile, forward over reverse"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "BACKEND", "eager")  # traced by Dynamo, and run as it is


def error_of(name: str, problem: Problem) -> float:
    step = SYSTEMS[name].build(problem)
    step()
    step()
    return errors(step(), reference_gradients(problem)[0])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_gradient_for_every_parameter_and_reverse_over_reverse_agrees(kind: str) -> None:
    problem = make(kind, "cpu", TOY)
    reference, how = reference_gradients(problem)
    assert how == "float64"
    named = dict(zip(problem.named_parameters(), reference, strict=True))
    # A constant added to an energy is the only thing that no gradient reaches.
    assert [n for n, g in named.items() if not g.abs().max() > 0 and not n.endswith("bias")] == []
    with torch.compiler.set_stance("force_eager"):  # the descent alone; Dynamo takes seconds for each kind
        assert error_of(REVERSE, problem) < 1e-6


def test_forward_over_reverse_agrees_in_double_precision() -> None:
    assert error_of(FORWARD, make("graph", "cpu", TOY).converted(torch.float64)) < 1e-12


def test_what_dynamo_cannot_trace_is_named() -> None:
    with pytest.raises(Unavailable, match="Dynamo cannot trace jvp over grad of GroupNorm"):
        SYSTEMS[FORWARD].build(make("residual", "cpu", TOY))


def test_what_a_compiler_says_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no such luck\nat all")

    monkeypatch.setattr(generic, "BACKEND", fails)
    with pytest.raises(Unavailable, match=r"torch\.compile: BackendCompilerFailed: "):
        SYSTEMS[REVERSE].build(make("graph", "cpu", TOY))


def test_the_step_that_dynamo_has_traced_agrees_and_sees_weights_that_training_has_changed() -> None:
    problem = make("graph", "cpu", TOY)
    step = SYSTEMS[REVERSE].build(problem)
    before = step()
    assert errors(before, reference_gradients(problem)[0])[0] < 1e-6
    with torch.no_grad():
        for p in problem.parameters():
            p.mul_(1.5)
    assert errors(step(), reference_gradients(problem)[0])[0] < 1e-6
    assert errors(step(), before)[0] > 1e-2


@pytest.mark.parametrize(("kind", "kept"), [("graph", ", kept"), ("label-sets", "")])
def test_reverse_over_reverse_programs_agree(kind: str, kept: str) -> None:
    assert error_of(f"spen Compiled, reverse over reverse{kept}", make(kind, "cpu", TOY)) < 1e-6


def test_the_suite_of_six_measures_all_kinds_by_the_same_systems() -> None:
    cases = SUITES["six"].cases("cpu", TOY)
    assert len(cases) == len(KINDS) == 6
    names = [[s.name for s in case.systems if s.name != "JAX scan"] for case in cases]
    assert all(n == names[0] for n in names)
    assert {REVERSE, FORWARD, "spen Auto", "spen Compiled, kept", "plain PyTorch"} <= set(names[0])


def test_an_unknown_kind_gets_the_list() -> None:
    with pytest.raises(ValueError, match="there is no kind abacus; there are deep-prior, residual, "):
        make("abacus", "cpu")
