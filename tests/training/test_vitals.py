"""Watching the terms of an energy goes on after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from spen.training import DeadEnergyWarning
from spen.training.health import Vitals
from tests.training import toy


def test_vitals_go_on_where_they_stopped() -> None:
    first, second = Vitals(looks=2), Vitals(looks=2)
    with pytest.warns(DeadEnergyWarning, match="'old' of the energy is dead"):
        for size in (1.0, 0.0, 0.0):
            first.observe({"old": size})
    first.observe({"old": 0.0, "prior": 4.0})
    first.observe({"old": 0.0, "prior": 0.0})
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {
        "largest": {"old": 1.0, "prior": 4.0},
        "silent": {"old": 4, "prior": 1},
        "dead": ["old"],
    }
    with pytest.warns(DeadEnergyWarning, match=r"'prior' of the energy is dead: its gradient in y fell from 4.0e\+00"):
        assert len(second.observe({"old": 0.0, "prior": 1e-9})) == 1


def test_an_interrupted_run_records_the_same(tmp_path: Path) -> None:
    whole = toy.train(tmp_path / "whole")
    assert whole is not None
    while (parts := toy.train(tmp_path / "parts", seconds=0.0)) is None:
        pass
    expected, found = ([{k: v for k, v in e.items() if k != "seconds"} for e in r.metrics()] for r in (whole, parts))
    assert found == expected
    assert set(expected[-1]["terms"]) == {"local", "prior", "entropy"}
