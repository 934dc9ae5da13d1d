"""The runner at toy size: rows, skips, disagreement, budget, files; never a figure."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.__main__ import main, parse
from benchmarks.by_hand import reference_gradients
from benchmarks.ceilings import measure_ceilings
from benchmarks.measure import cpu_peak, errors, idle_in_graphs, measure
from benchmarks.peers import JAX_PYTHON, run_jax
from benchmarks.problems import Problem, deep_prior
from benchmarks.results import Results, Row, Skip, read, read_all
from benchmarks.runner import Budget, Case, run_case
from benchmarks.suites import FULL, SUITES, TOY
from benchmarks.systems import SYSTEMS, System, Unavailable, find, system

TINY = {"batch": 2, "height": 8, "width": 8, "steps": 2, "channels": 2}
QUICK = partial(Budget, 60.0, 0.0, 3)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.json", device="cpu", command="python -m benchmarks")


def tiny() -> Problem:
    return deep_prior("cpu", **TINY)


def wrong(problem: Problem) -> Any:
    """A plain step with one gradient off by five percent."""
    right = SYSTEMS["plain PyTorch"].build(problem)

    def step() -> list[Tensor]:
        gradients = right()
        largest = max(range(len(gradients)), key=lambda i: float(gradients[i].norm()))
        gradients[largest] = 1.05 * gradients[largest]
        return gradients

    return step


def test_a_row_has_what_the_tables_need(results: Results) -> None:
    run_case("toy", Case(tiny, find(["plain PyTorch", "spen FiniteDifference"])), results, None, QUICK())
    whole = read(results.path)
    assert {"schema", "command", "machine", "versions", "began", "rows", "skipped"} <= set(whole)
    assert whole["versions"]["torch"] == torch.__version__
    plain, differences = whole["rows"]
    assert set(plain) == {f.name for f in fields(Row)}
    assert plain["system"] == "plain PyTorch"
    assert plain["sizes"] == TINY
    assert plain["precision"] == "float32"  # there is no TF32 on a CPU
    assert plain["milliseconds"] > 0
    assert plain["repeats"] == 3
    assert plain["best_ms"] <= plain["milliseconds"]
    assert plain["notes"]["cpu_ms"] > 0
    assert plain["peak_mib"] > 0
    assert plain["error"] < 1e-5
    assert plain["agrees"] is True
    assert 1e-6 < differences["error"] < 1e-2
    assert differences["worst_error"] >= differences["error"] / 3


def test_the_agreement_check_fires(results: Results) -> None:
    run_case("toy", Case(tiny, [System("wrong", wrong)]), results, None, QUICK())
    (row,) = results.rows
    assert row.agrees is False
    assert row.worst_error == pytest.approx(0.05, rel=1e-3)
    assert row.error is not None
    assert 0.01 < row.error <= 0.05


def test_a_gradient_that_is_not_a_number_disagrees() -> None:
    reference = [torch.ones(2)]
    assert errors([torch.tensor([1.0, float("nan")])], reference) == (float("inf"), float("inf"))
    assert errors([torch.tensor([1.0, 1.1])], reference)[0] == pytest.approx(0.1 / 2**0.5, rel=1e-5)
    with pytest.raises(ValueError, match="1 gradients for 2 parameters"):
        errors([torch.ones(1)], [torch.ones(1)] * 2)
    with pytest.raises(ValueError, match=r"a gradient has shape \(1,\), its parameter \(2,\)"):
        errors([torch.ones(1)], reference)


def test_the_worst_parameter_is_told_apart() -> None:
    together, worst = errors([torch.ones(100), torch.tensor([0.02])], [torch.ones(100), torch.tensor([0.01])])
    assert together == pytest.approx(0.001, rel=1e-3)
    assert worst == pytest.approx(1.0)


def test_missing_and_failing_systems_are_named_and_the_run_goes_on(results: Results) -> None:
    def fails(problem: Problem) -> Any:
        raise RuntimeError("this one cannot\nand says so at length")

    systems = [
        System("missing", wrong, needs="no_such_peer"),
        System("failing", fails),
        System("half", wrong, precision="bf16"),
        *find(["plain PyTorch"]),
    ]
    run_case("toy", Case(tiny, systems), results, None, QUICK())
    assert [(s.system, s.reason) for s in results.skipped] == [
        ("missing", "no_such_peer cannot be imported: No module named 'no_such_peer'"),
        ("failing", "this one cannot"),
        ("half", "bf16 products are measured on a GPU"),
    ]
    assert [row.system for row in results.rows] == ["plain PyTorch"]


def test_out_of_time_is_said_for_every_row(results: Results) -> None:
    run_case("toy", Case(tiny, find(["plain PyTorch", "spen Exact"])), results, None, Budget(0.0, 1.0, 3))
    assert [(s.system, s.reason) for s in results.skipped] == [
        ("plain PyTorch", "the time was up"),
        ("spen Exact", "the time was up"),
    ]


def test_a_problem_that_cannot_be_made_skips_its_systems(results: Results) -> None:
    def too_large() -> Problem:
        raise RuntimeError("no room")

    run_case("toy", Case(too_large, find(["plain PyTorch"])), results, None, QUICK())
    assert [s.reason for s in results.skipped] == ["no room"]


def test_results_are_written_after_every_entry(results: Results) -> None:
    results.add(Skip("toy", "DeepPrior", TINY, "a", "because"))
    assert len(read(results.path)["skipped"]) == 1
    results.add(Row("toy", "DeepPrior", TINY, "b", "tf32", 1.0, 0.1, 0.9, 3, 2.0))
    assert len(read(results.path)["rows"]) == 1
    assert list(results.path.parent.iterdir()) == [results.path]


def test_files_of_another_schema_or_machine_are_refused(results: Results, tmp_path: Path) -> None:
    results.write()
    other = json.loads(results.path.read_text())
    (tmp_path / "old.json").write_text(json.dumps({**other, "schema": 0}))
    with pytest.raises(ValueError, match=r"old.json has schema 0; this version reads 1"):
        read(tmp_path / "old.json")
    other["machine"]["processor"] = "abacus"
    (tmp_path / "there.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"there.json was measured on another machine"):
        read_all([results.path, tmp_path / "there.json"])
    assert read_all([results.path, results.path])["command"] == "python -m benchmarks`, `python -m benchmarks"


def test_gradients_are_those_of_the_last_step() -> None:
    """What compiles or captures on the way has to be right in the end, not on its first call."""
    calls = 0

    def build() -> Any:
        def step() -> list[Tensor]:
            nonlocal calls
            calls += 1
            return [torch.tensor([float(calls)])]

        return step

    seen: list[int] = []
    outcome = measure(build, torch.device("cpu"), seconds=0.0, repeats=3, probe=lambda step: {"called": seen.append(1)})
    assert float(outcome.gradients[0]) == calls
    assert seen == [1]
    assert len(outcome.seconds) == 3
    assert outcome.median > 0
    assert outcome.spread >= 0


def test_peak_memory_of_a_call_on_a_cpu() -> None:
    def call() -> None:
        kept = [torch.zeros(2**18) for _ in range(3)]  # a MiB each
        torch.zeros(2**19)  # two MiB, gone at once
        del kept

    assert cpu_peak(call) / 2**20 == pytest.approx(5.0, abs=0.1)


def test_memory_that_captured_graphs_keep_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed graph calls no allocator: what its pool holds and nobody has allocated counts as the step's."""
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 1000, "allocated_size": 10},
        {"segment_pool_id": (0, 1), "total_size": 300, "allocated_size": 100},
        {"segment_pool_id": (0, 2), "total_size": 50, "allocated_size": 0},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert idle_in_graphs() == 250


def test_the_reference_is_in_double_precision_and_sliced_where_asked() -> None:
    problem = tiny()
    whole, how = reference_gradients(problem)
    assert how == "float64"
    assert {g.dtype for g in whole} == {torch.float64}
    assert next(problem.model.parameters()).dtype == torch.float32
    problem.parts = 2
    sliced, _ = reference_gradients(problem)
    assert errors(sliced, whole)[0] < 1e-12
    single, how = reference_gradients(problem, ("float32",))
    assert how == "float32"
    assert 1e-9 < errors(single, whole)[0] < 1e-4


def test_systems_register_once_and_are_found_by_name() -> None:
    with pytest.raises(ValueError, match="there are two systems called 'plain PyTorch'"):
        system("plain PyTorch")(wrong)
    with pytest.raises(ValueError, match="there is no system abacus; there are plain PyTorch, "):
        find(["abacus"])
    assert {"TorchOpt", "higher", "JAX scan", "JAX scan, checkpoint", "spen Auto"} <= set(SYSTEMS)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_toy_cases_whose_problems_can_be_solved_by_hand(name: str) -> None:
    cases = SUITES[name].cases("cpu", TOY)
    problem = cases[0].make()
    assert cases[0].systems
    step = SYSTEMS["spen FiniteDifference" if "fused" in problem.name else "plain PyTorch"].build(problem)
    gradients = step()
    assert [g.shape for g in gradients] == [p.shape for p in problem.parameters()]
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert sum(float(g.abs().sum()) for g in gradients) > 0


def test_few_rows_are_measured_where_they_meet_a_twentieth_of_the_memory() -> None:
    few = {"spen Compiled, 8 rows", "spen Compiled, 2 rows", "spen Compiled, bf16, 2 rows"}
    for name, expected in (
        ("deep-prior-20", {"spen Compiled, 8 rows"}),
        ("deep-prior-3", few - {"spen Compiled, 8 rows"}),
    ):
        (case,) = SUITES[name].cases("cuda", FULL)
        systems = {system.name for system in case.systems}
        assert systems & few == expected
        assert "spen Compiled, three quarters kept" not in systems


def test_the_command_writes_results_and_its_exit_status_tells_of_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--device", "cpu", "--size", "toy", "--only", "deep-prior-3", "--row-seconds", "0", "--repeats", "3"]
    options += ["--out", str(tmp_path), "--systems", "spen Exact;wrong"]
    monkeypatch.setitem(SYSTEMS, "wrong", System("wrong", wrong))
    small = partial(measure_ceilings, matrix=128, copied=2**16)
    monkeypatch.setattr("benchmarks.__main__.measure_ceilings", small)
    assert main(options) == 1
    assert "gradients disagree with the reference: deep-prior-3 wrong" in capsys.readouterr().err
    whole = read(tmp_path / "results.json")
    assert [row["agrees"] for row in whole["rows"]] == [True, False]
    assert all(row["floor_ms"] > 0 and row["kernels_ms"] > 0 for row in whole["rows"])
    assert whole["ceilings"]["rates"]["float32"] > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "abacus"], "there is no suite abacus; there are deep-prior-20"),
        (["--systems", "abacus"], "there is no system abacus"),
        (["--device", "cuda"], "torch sees no GPU here"),
    ],
)
def test_mistakes_end_before_anything_is_measured(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_jax_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named jax' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv(JAX_PYTHON, str(script))
    with pytest.raises(Unavailable, match="JAX: ModuleNotFoundError: No module named jax"):
        run_jax(tiny(), checkpointed=False, seconds=10, repeats=3)
    other = SUITES["label-sets"].cases("cpu", TOY)[0].make()
    with pytest.raises(Unavailable, match="there is no JAX version of label sets"):
        run_jax(other, checkpointed=False, seconds=10, repeats=3)


@pytest.mark.parametrize(
    ("name", "package"),
    [("TorchOpt", "torchopt"), ("higher", "higher"), ("JAX scan", "jax"), ("JAX scan, checkpoint", "jax")],
)
def test_peers_agree_where_they_are_installed(name: str, package: str, results: Results) -> None:
    if find_spec(package) is None and not (package == "jax" and JAX_PYTHON in os.environ):
        pytest.skip(f"{package} is not installed")
    run_case("toy", Case(tiny, find([name])), results, None, QUICK())
    assert not results.skipped
    assert results.rows[0].agrees
    assert results.rows[0].error is not None
    assert results.rows[0].error < 1e-5
