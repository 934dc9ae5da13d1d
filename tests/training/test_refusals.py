"""What `fit` and a run folder refuse, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from spen.objectives import EndToEnd, squared_error
from spen.training import Run, fit, joint
from tests.training import toy


def test_stages_need_names_of_their_own(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)] * 2
    with pytest.raises(ValueError, match=r"stages need different names, not \['joint', 'joint'\]"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path, accelerator="cpu")


def test_a_metric_must_say_which_way_is_better(tmp_path: Path) -> None:
    class Undecided(toy.MSE):
        higher_is_better = None

    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)]
    with pytest.raises(ValueError, match="Undecided does not say whether higher is better: give fit higher"):
        fit(toy.build_model(), stages, source, dev, Undecided(), out=tmp_path / "run", accelerator="cpu")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_stages_is_refused(tmp_path: Path) -> None:
    def train(epochs: int) -> Run | None:
        source, dev = toy.build_data()
        stages = [joint(EndToEnd(squared_error), epochs=epochs)]
        return fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)

    first = train(1)
    assert first is not None
    assert train(1) is not None
    sentence = (
        r"holds another run \(stage.joint.epochs: 1 there, 2 now\); give another folder, or delete it to start anew"
    )
    with pytest.raises(ValueError, match=sentence):
        train(2)
    assert len(first.metrics()) == 1


def test_a_run_that_did_nothing_yet_makes_room(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {"width": 1}, 0)
    run.compare({"epochs": 1}, "first weights")
    again = Run.begin(tmp_path, {"width": 2}, 0)
    again.compare({"epochs": 2}, "first weights")
    again.compare({"epochs": 3}, "first weights")
    assert again.description()["recipe"] == {"width": 2}
    again.record({"stage": "a", "epoch": 0})
    with pytest.raises(
        ValueError, match=r"holds another run \(recipe.width: 2 there, 1 now\); give another folder, or"
    ):
        Run.begin(tmp_path, {"width": 1}, 0)
    with pytest.raises(ValueError, match=r"holds another run \(seed: 0 there, 1 now\); give another folder, or delete"):
        Run.begin(tmp_path, {"width": 2}, 1)
    with pytest.raises(
        ValueError, match=r"holds another run \(epochs: 3 there, 1 now\); give another folder, or delete"
    ):
        again.compare({"epochs": 1}, "first weights")
    again.compare({"epochs": 3}, "first weights")


def test_a_stage_of_so_many_seconds_needs_one_clock(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1, seconds=5.0)]
    with pytest.raises(ValueError, match="a stage that lasts so many seconds needs devices=1: clocks and schedules"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path / "run", accelerator="cpu", devices=2)
