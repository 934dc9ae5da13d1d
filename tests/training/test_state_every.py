"""A state that is written seldom."""

from __future__ import annotations

from pathlib import Path

from spen.training import Run, fit
from tests.training import toy


def train(out: Path, *, state_every: float, seconds: float | None = None) -> Run | None:
    source, dev = toy.build_data()
    stages = toy.build_stages(3)
    options = {"out": out, "accelerator": "cpu", "progress": False, "seconds": seconds, "state_every": state_every}
    return fit(toy.build_model(), stages, source, dev, toy.MSE(), **options)  # type: ignore[arg-type]


def test_a_state_that_is_written_seldom_changes_nothing(tmp_path: Path) -> None:
    often, seldom = train(tmp_path / "often", state_every=0.0), train(tmp_path / "seldom", state_every=1e9)
    assert often is not None
    assert seldom is not None
    assert often.state(2).exists()
    assert not seldom.state(2).exists(), "no epoch of this run lasted so long"
    assert {k: v.tolist() for k, v in often.load().items()} == {k: v.tolist() for k, v in seldom.load().items()}


def test_when_time_is_up_the_state_is_written_all_the_same(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", state_every=0.0)
    calls = 0
    while not (run := train(tmp_path / "pieces", state_every=1e9, seconds=0.0)).complete:
        calls += 1
        assert calls < 9
    assert calls >= 3
    assert whole is not None
    assert {k: v.tolist() for k, v in whole.load().items()} == {k: v.tolist() for k, v in run.load().items()}
