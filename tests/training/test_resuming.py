"""Runs that die at awkward moments, and what they have learnt when they are called again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spen.training import Run, Stage, fit, load_weights, module
from spen.training.module import TimeBox
from tests.training import toy


class Killed(Exception):
    pass


class Death:
    """When a run is killed. No option of the metric, which is compared with that of the folder."""

    at = 0  # the number of the score


class Scores(toy.MSE):
    """Development scores that pass through a function of their number; it may raise ``Killed``."""

    def __init__(self, change: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.calls = change, 0

    def compute(self) -> Tensor:
        self.calls += 1
        return self.change(self.calls, super().compute())


def _train(out: Path, last: Stage, *, die_at: int = 0, **options: Any) -> Run:
    def score(call: int, value: Tensor) -> Tensor:
        if call == Death.at:
            raise Killed
        return value

    Death.at = die_at
    train, dev = toy.build_data()
    stages = [*toy.build_stages(1)[:2], last]
    fixed = {"out": out, "accelerator": "cpu", "progress": False}
    run = fit(toy.build_model(), stages, train, dev, Scores(score), **fixed, **options)
    assert run is not None
    return run


def _weights(path: Path) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in load_weights(path).items()}


def _last(**options: Any) -> Stage:
    return replace(toy.build_stages(4)[2], learning_rate=0.08, decay_to=1.0, warmup=0, **options)


def test_a_stage_that_keeps_its_start_can_die_before_its_first_state(tmp_path: Path) -> None:
    """Its own scores, recorded before it died, are not those of the stage before."""
    stage = _last(keep_start=True)
    whole = _train(tmp_path / "whole", stage, state_every=1e9)
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stage, die_at=9, state_every=1e9)
    assert [e["stage"] for e in Run.open(tmp_path / "killed").metrics()].count("joint") == 3
    again = _train(tmp_path / "killed", stage, state_every=1e9)
    assert _weights(again.weights_path) == _weights(whole.weights_path)
    assert _weights(again.weights_path) != _weights(again.best(1))
    assert [(e["epoch"], e["dev"], e["best"]) for e in again.metrics()] == [
        (e["epoch"], e["dev"], e["best"]) for e in whole.metrics()
    ]


def test_a_start_is_judged_by_the_score_of_its_own_weights(tmp_path: Path) -> None:
    """Also where it was kept once before, and where an epoch of it had no score."""
    good = toy.build_stages(2)[2]
    bad = replace(good, name="bad", keep_start=True)
    scores = [1.0, math.nan, 3.0, 3.0, 2.0, 2.0]
    metric = Scores(lambda call, value: torch.tensor(scores[call - 1]))
    train, dev = toy.build_data()
    stages = [good, bad, replace(bad, name="worse")]
    run = fit(toy.build_model(), stages, train, dev, metric, out=tmp_path, accelerator="cpu", progress=False)
    assert run is not None
    assert [e["best"] for e in run.metrics()] == [True, False, False, False, False, False]
    assert _weights(run.weights_path) == _weights(run.best(0))


@pytest.mark.parametrize("end", ["patience", "seconds", "epochs"])
def test_a_run_can_die_between_its_last_state_and_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(module, "TimeBox", partial(TimeBox, clock=count().__next__))  # an update a second
    options = {"patience": {"patience": 1}, "seconds": {"seconds": 10.0}, "epochs": {}}[end]
    stage = replace(_last(**options), learning_rate=0.2)
    run = _train(tmp_path, stage)
    weights, lines = _weights(run.weights_path), run.metrics()
    assert (len(lines) == 2 + 2 + 4) == (end == "epochs")
    run.finished(2).unlink()
    run.weights_path.unlink()
    again = _train(tmp_path, stage)
    assert _weights(again.weights_path) == weights
    assert again.metrics() == lines


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {}, 0)
    run.record({"stage": "a", "epoch": 0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "a", "ep')
    run.record({"stage": "a", "epoch": 1})
    run.record({"stage": "a", "epoch": 2})
    assert [e["epoch"] for e in run.metrics()] == [0, 1, 2]
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [len(line) for line in text.split("\n")] == [26, 18, 26, 26, 0]
