"""A stage that lasts so many seconds, with the whole of its schedule; a mean of the weights that is scored and kept."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spen.objectives import EndToEnd, squared_error
from spen.training import Run, Stage, fit, load_weights, module
from spen.training.module import StageModule, TimeBox, WeightAverage
from tests.training import toy


class Clock:
    """Stands still unless told, or goes on by ``step`` whenever it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def _stage(**options: Any) -> Stage:
    return Stage(**{"name": "joint", "objective": EndToEnd(squared_error), "epochs": 4, **options})


def _fit(out: Path, stage: Stage, **options: Any) -> Run | None:
    train, dev = toy.build_data()
    return fit(toy.build_model(), [stage], train, dev, toy.MSE(), out=out, accelerator="cpu", progress=False, **options)


def test_progress_reaches_one_when_the_time_is_spent_and_a_slow_start_skips_nothing() -> None:
    clock = Clock()
    box = TimeBox(100.0, settle=2, clock=clock)
    seen = []
    for seconds in (30.0, 20.0, *[1.0] * 50):
        clock.now += seconds
        box.tick()
        seen.append(box.progress)
    assert seen[:2] == [0.0, 0.0]
    assert seen[2:] == pytest.approx([k / 50 for k in range(1, 51)])
    assert box.over


def test_a_box_goes_on_in_another_process() -> None:
    first, second = Clock(), Clock()
    box = TimeBox(10.0, settle=0, clock=first)
    first.now = 5.0
    box.tick()
    second.now = 1000.0
    again = TimeBox(10.0, settle=0, clock=second)
    again.load_state_dict(box.state_dict())
    second.now = 1002.5
    again.tick()
    assert (again.spent, again.progress, again.over) == (7.5, 0.75, False)


def test_a_stage_in_a_box_ends_with_it_scored_and_with_a_low_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    ended = StageModule.on_train_batch_end

    def watched(self: StageModule, *arguments: Any) -> None:
        ended(self, *arguments)
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    monkeypatch.setattr(StageModule, "on_train_batch_end", watched)
    monkeypatch.setattr(module, "TimeBox", partial(TimeBox, clock=Clock(step=1.0)))
    run = _fit(tmp_path / "run", _stage(epochs=100_000, seconds=60.0, decay_to=0.01))
    assert run is not None
    assert run.weights_path.exists()
    assert len(rates) == 60, "an update a second, and the last one fills the box"
    assert math.isfinite(run.metrics()[-1]["dev"])
    assert rates[0] == pytest.approx(1e-3, rel=1e-2)
    assert rates[-1] < 0.05 * rates[0]
    assert all(b <= a for a, b in pairwise(rates))
    assert run.finished(0).exists()


def test_a_box_that_is_large_changes_nothing(tmp_path: Path) -> None:
    a, b = (_fit(tmp_path / n, _stage(seconds=s, decay_to=0.1)) for n, s in (("a", None), ("b", 1e9)))
    assert a is not None
    assert b is not None
    for name, value in a.load().items():
        torch.testing.assert_close(value, b.load()[name], rtol=1e-5, atol=1e-7)


def test_the_mean_follows_its_formula_and_swaps_by_value() -> None:
    weight = nn.Parameter(torch.zeros(1))
    mean = WeightAverage({"w": weight}, 0.5)
    expected = 0.0
    for n in range(1, 8):
        with torch.no_grad():
            weight.fill_(float(n))
        mean.update()
        keep = min(0.5, (1 + n) / (10 + n))
        expected = float(n) if n == 1 else keep * expected + (1 - keep) * n
    assert float(mean.means["w"]) == pytest.approx(expected)
    held = weight.detach()
    mean.swap()
    assert float(held) == pytest.approx(expected)
    mean.swap()
    assert float(held) == 7.0


def test_what_is_kept_is_the_mean_and_scores_as_logged(tmp_path: Path) -> None:
    plain, averaged = _fit(tmp_path / "plain", _stage()), _fit(tmp_path / "mean", _stage(average=0.9))
    assert plain is not None
    assert averaged is not None
    assert [e["loss"] for e in plain.metrics()] == [e["loss"] for e in averaged.metrics()]  # training is the same
    assert [e["dev"] for e in plain.metrics()] != [e["dev"] for e in averaged.metrics()]
    model = toy.build_model()
    model.load_state_dict(averaged.load())
    model.eval()
    _, dev = toy.build_data()
    with torch.no_grad():
        error = float(squared_error(model(dev.x).output, dev.target).mean())
    assert error == pytest.approx(min(e["dev"] for e in averaged.metrics()), rel=1e-5)


def test_the_mean_survives_a_stop(tmp_path: Path) -> None:
    stage = _stage(average=0.9, decay_to=0.1)
    whole = _fit(tmp_path / "whole", stage)
    assert whole is not None
    stops = 0
    while not (run := _fit(tmp_path / "parts", stage, seconds=0.0)).complete:
        stops += 1
    assert stops == 3
    for number_weights in (whole.best(0), whole.weights_path):
        name = number_weights.relative_to(whole.folder)
        mine, theirs = load_weights(number_weights), load_weights(run.folder / name)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_bad_boxes_and_means_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stage 'joint': average must lie in \[0, 1\), not 1.0"):
        _stage(average=1.0)
    with pytest.raises(ValueError, match="stage 'joint': seconds must be positive, not 0"):
        _stage(seconds=0)
