"""The scripts that measure one thing each, at toy size: what they write and print; never a figure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import derivatives, guard, kernels, label_sets, lengths, prediction, processes, turns
from benchmarks.measure import in_turns, ratio
from spen.descent.potential import Potential
from spen.gradients import Exact


def test_calls_take_turns() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = in_turns(calls, torch.device("cpu"), seconds=0.0, repeats=10)
    assert [len(t) for t in times.values()] == [3, 3]
    assert order[:4] == ["a", "a", "b", "b"]  # a block's length is found
    assert order[4:] == (["a"] * 50 + ["b"] * 50) * 3
    assert ratio([2.0, 6.0, 1.0], [1.0, 2.0, 1.0]) == 2.0


def test_lengths_are_trained_twice_and_evaluations_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(lengths.shuffled(3, 5)) == [3, 3, 4, 4, 5, 5]
    before = Potential.__call__
    _, calls = lengths.train(Exact(), [3, 4], "cpu", 2)
    assert calls >= 2 * lengths.STEPS
    assert Potential.__call__ is before
    found = lengths.main(["--device", "cpu", "--first", "3", "--last", "4", "--rounds", "1", "--out", str(tmp_path)])
    whole = json.loads((tmp_path / "results.json").read_text())
    assert whole["ratio"] == found > 0
    assert whole["calls"]["Exact()"] >= 4 * lengths.STEPS
    assert "for 4 batches of 2 lengths" in capsys.readouterr().out


def test_the_check_of_a_program_is_timed_with_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--size", "toy", "--kinds", "label-sets", "--seconds", "0", "--repeats", "3"]
    (found,) = guard.main([*options, "--out", str(tmp_path)])
    assert found.problem == "label sets"
    assert 0 < found.microseconds < 1000 * found.step_ms
    assert json.loads((tmp_path / "results.json").read_text())["costs"][0]["per_cent"] == found.per_cent
    assert "µs of the check" in capsys.readouterr().out


def test_estimators_are_compared_on_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "mine.npz", x=x, y=x[:, :2] > 0)
    label_sets.main([str(tmp_path / "mine.npz"), "--seeds", "1", "--folds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[5].strip() for line in lines[2:]] == [f"`{name}`" for name in label_sets.models(True, 0)]
    assert all(line.split("|")[2:5] == [" 40 ", " 3 ", " 2 "] and "± 0.0" in line for line in lines[2:])
    for table in (label_sets.cells, label_sets.digits):
        inputs, labels = table()
        assert len(inputs) == len(labels)
        assert set(np.unique(labels)) == {0, 1}


def test_prediction_agrees_with_a_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--height", "24", "--width", "32", "--seconds", "0", "--repeats", "3"]
    found = prediction.main([*options, "--out", str(tmp_path)])
    assert found["difference"] < 1e-5
    assert found["model(x)"] > 0
    assert "32×24 on cpu" in capsys.readouterr().out


def test_derivatives_are_right_and_their_table_names_both_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = ["--device", "cpu", "--size", "toy", "--unfused", "--seconds", "0", "--repeats", "3", "--out", str(tmp_path)]
    found = derivatives.main(toy)
    assert [s.task for s in found] == ["forces, 2 × 3 atoms", "Burgers, 4 points"]
    assert all(s.plain_ms > 0 and s.faster > 0 and s.error < 1e-4 for s in found)
    written = json.loads((tmp_path / "results.json").read_text())
    assert (written["size"], written["fused"], len(written["speeds"])) == ("toy", False, 2)
    assert "| Burgers, 4 points | " in capsys.readouterr().out


def test_every_system_gets_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    turns.main({2: 2}, height=8, width=12)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" median")[0].strip() for line in lines] == [f"T = 2: {name}" for name in turns.NAMES]
    assert lines[0].endswith("1.00 of plain PyTorch's turn")
    assert all(float(re.search(r"median +([\d.]+) ms", line)[1]) > 0 for line in lines)  # type: ignore[index]


def test_kernels_are_traced_and_rows_without_time_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(["--device", "cpu", "--tiny", "--seconds", "0"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("all passes", "none"))]
    assert len(lines) == 8
    assert all("not begun: the time was up" in line for line in lines)


def test_several_processes_are_timed_against_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--size", "toy", "--kinds", "label-sets", "--steps", "2", "--out", str(tmp_path)]
    (found,) = processes.main(options)
    assert found.problem == "label-sets"
    assert found.ratio == pytest.approx(2 * found.one_ms / found.several_ms)
    assert 0 <= found.communication < 1
    whole = json.loads((tmp_path / "results.json").read_text())
    assert whole["throughput"][0]["ratio"] == found.ratio
    assert "examples a second, ratio" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        processes.main(["--device", "cuda"])
    assert "the processes run on a CPU: give --device cpu" in capsys.readouterr().err
