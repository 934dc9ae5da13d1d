"""The scripts that measure one thing each, at toy size: what they write and print; never a figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import derivatives, guard, label_sets, lengths, prediction, startup
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


def test_steps_are_settled_when_the_last_slow_one_is_over() -> None:
    found = startup.settled([5.0, 1.0, 0.1, 3.0, *[0.1] * 12])
    assert found["first"] == 5.0
    assert found["steady"] == pytest.approx(0.1)
    assert found["until"] == pytest.approx(9.1)
    assert found["setup"] == pytest.approx(9.0 - 0.3)
    assert startup.settled([0.1] * 4)["until"] == 0.0


def test_first_steps_name_the_choice_and_the_table_has_the_targets() -> None:
    found = startup.first_steps("cpu", "toy", 0.0, 4)
    assert found["steps"] == 3
    assert found["choice"]
    whole = {"imports": {"import torch": 1.0, "import spen beyond torch": 0.2}, "trainings": {"cold": found}}
    lines = startup.table(whole).splitlines()
    assert lines[2:4] == ["| import torch | 1.000 |  |", "| import spen beyond torch | 0.200 | 0.3 |"]
    assert lines[4].startswith("| first step, cold | ")
    assert lines[4].endswith(" | 5 |")
    assert lines[5].endswith(" | 20 |")


def test_imports_are_timed_in_a_fresh_process() -> None:
    found = startup.imports(1)
    assert all(seconds > 0 for seconds in found.values())


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
