"""The result of a run is the best epoch of all its stages, unless a stage says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spen.objectives import EndToEnd, squared_error
from spen.training import Run, Stage, clamped, fit, joint, load_weights, pretrain
from tests.training import toy


class Scripted(toy.MSE):
    """Development scores in the order they are given; higher is better."""

    higher_is_better = True

    def __init__(self, scores: Sequence[float]) -> None:
        super().__init__()
        self.left = iter(scores)

    def compute(self) -> Tensor:
        return torch.tensor(next(self.left))


def _train(out: Path, stages: list[Stage], scores: Sequence[float]) -> Run:
    train, dev = toy.build_data(32)
    run = fit(toy.build_model(), stages, train, dev, Scripted(scores), out=out, accelerator="cpu", progress=False)
    assert run is not None
    return run


def _is_of(run: Run, stage: int) -> bool:
    best = load_weights(run.best(stage))
    return all(torch.equal(best[name], value) for name, value in run.load().items())


OBJECTIVE = EndToEnd(squared_error)
FIRST = joint(OBJECTIVE, epochs=2)
SECOND = replace(FIRST, name="second")
BELOW = "stage 'second' ends worse than it began: its best dev score is 54.3, that of stage 'joint' before it is 72.3"


def test_a_stage_that_ends_below_its_start_says_so_and_does_not_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _train(tmp_path, [FIRST, SECOND], [70.0, 72.3, 54.3, 50.0])
    assert _is_of(run, 0)
    assert [e["reports"] for e in run.metrics()] == [[], [], [], [BELOW]]
    assert capsys.readouterr().err.splitlines() == [
        BELOW,
        "the best epoch of all stages is one of 'joint' (dev 72.3): it is the result",
    ]


@pytest.mark.parametrize("keep", [True, False])
def test_the_sentence_does_not_depend_on_what_is_done_about_it(tmp_path: Path, keep: bool) -> None:
    run = _train(tmp_path, [FIRST, replace(SECOND, keep_start=keep)], [70.0, 72.3, 54.3, 50.0])
    assert run.metrics()[-1]["reports"] == [BELOW]
    assert _is_of(run, 0) == keep


def test_a_better_stage_wins_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _train(tmp_path, [FIRST, SECOND], [70.0, 72.3, 72.2, 72.4])
    assert _is_of(run, 1)
    assert capsys.readouterr().err == ""


def test_a_stage_goes_on_from_the_stage_before_it_though_that_is_not_the_best(tmp_path: Path) -> None:
    stages = [FIRST, SECOND, replace(FIRST, name="third")]
    run = _train(tmp_path, stages, [70.0, 72.3, 54.3, 50.0, 60.0, 61.0])
    assert _is_of(run, 0)
    assert [e["best"] for e in run.metrics()] == [True, True, True, False, True, True]
    assert run.metrics()[-1]["reports"] == []  # better than the stage before it
    other = _train(tmp_path / "other", stages, [70.0, 72.3, 54.3, 50.0, 60.0, 73.0])
    assert _is_of(other, 2)


def test_patience_counts_from_the_best_epoch_of_the_stage_itself(tmp_path: Path) -> None:
    stages = [FIRST, replace(SECOND, epochs=9, patience=2)]
    run = _train(tmp_path, stages, [70.0, 72.3, 54.0, 55.0, 56.0, 50.0, 50.0])
    assert [e["dev"] for e in run.metrics()][2:] == [54.0, 55.0, 56.0, 50.0, 50.0]
    assert _is_of(run, 0)


def test_a_start_is_scored_as_the_stage_predicts(tmp_path: Path) -> None:
    """Init∘F had 80, but a descent from there has 50: 60 after a descent is better."""
    stages = [pretrain(squared_error, epochs=1), FIRST]
    run = _train(tmp_path / "better", stages, [80.0, 50.0, 58.0, 60.0])
    assert _is_of(run, 1)
    assert run.scores(1) == {"best": 60.0, "start": 50.0}
    sentence = (
        "stage 'joint' ends worse than it began: its best dev score is 60, that of stage 'pretrain' before it is 80"
    )
    assert run.metrics()[-1]["reports"] == [sentence]
    worse = _train(tmp_path / "worse", stages, [80.0, 79.0, 58.0, 60.0])
    assert _is_of(worse, 0)
    off = [stages[0], replace(FIRST, keep_start=False)]
    assert _is_of(_train(tmp_path / "off", off, [80.0, 58.0, 60.0]), 1)  # no score of the start is asked for


def test_a_stage_and_its_shorthands_take_the_option() -> None:
    for build in (joint, clamped):
        assert build(OBJECTIVE, epochs=1).keep_start is None
        assert build(OBJECTIVE, epochs=1, keep_start=False).keep_start is False


@pytest.mark.parametrize("keep", [None, True, False])
def test_pieces_of_time_end_the_same(tmp_path: Path, keep: bool | None) -> None:
    def train(out: Path, seconds: float | None) -> Run | None:
        source, dev = toy.build_data(32)
        stages = [pretrain(squared_error, epochs=2), replace(SECOND, learning_rate=3.0, keep_start=keep)]
        options = {"out": out, "accelerator": "cpu", "progress": False, "seconds": seconds}
        return fit(toy.build_model(), stages, source, dev, toy.MSE(), **options)  # type: ignore[arg-type]

    whole = train(tmp_path / "whole", None)
    while not (parts := train(tmp_path / "parts", 0.0)).complete:
        pass
    assert whole is not None
    assert {n: v.tolist() for n, v in parts.load().items()} == {n: v.tolist() for n, v in whole.load().items()}
    assert [e["reports"] for e in parts.metrics()] == [e["reports"] for e in whole.metrics()]
    assert _is_of(parts, 1) or keep is None
