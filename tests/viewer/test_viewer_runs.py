"""The curves of a run folder, while it trains and after."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spen.training import Run
from spen.viewer.runs import show
from tests.viewer.worlds import fake_run


def charts(html: str) -> list[str]:
    return re.findall(r'aria-label="([^"]*)"', html)


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    html = show(Run.open(fake_run(tmp_path / "run")))
    assert "No epoch has ended yet" in html
    assert charts(html) == []
    assert "recipe <b>foe-3</b>" in html
    assert "seed <b>0</b>" in html


def test_a_run_in_training_says_how_long_ago_its_last_epoch_was(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", entries=2)
    ended = (folder / "metrics.jsonl").stat().st_mtime
    assert "2 epochs, last epoch ended 5 s ago." in show(Run.open(folder), now=ended + 5.2)
    assert "last epoch ended 3 min ago" in show(Run.open(folder), now=ended + 200)
    assert "last epoch ended 2 h ago" in show(Run.open(folder), now=ended + 7300)
    assert charts(show(Run.open(folder))) == ["training loss", "development score"]


def test_a_finished_run_has_every_curve(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    entries = [
        {
            "stage": stage,
            "epoch": epoch,
            "loss": 1.0 / (epoch + 1),
            "dev": 90.0 + epoch,
            "best": True,
            "rates": [0.1 * k for k in range(1, 11)],
            "terms": {"local": 1.0, "prior": 0.5},
            "reports": ["the term 'prior' <is> dead"] if epoch else [],
        }
        for stage in ("pretrain", "joint")
        for epoch in range(2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    (folder / "model.safetensors").touch()
    html = show(Run.open(folder))
    assert "4 epochs, finished; best development score of stage joint: 91.00." in html
    assert charts(html) == ["training loss", "development score", "step sizes η", "largest gradient of each term"]
    assert {"● pretrain", "● joint", "● step 1", "● step 10", "● local", "● prior"} <= set(
        re.findall(r">(● [^<]*)<", html)
    )
    assert len(re.findall(r">● step", html)) == 5
    assert "the term &#x27;prior&#x27; &lt;is&gt; dead" in html


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", entries=1)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"stage": "joint", "ep')
    assert "1 epoch, " in show(Run.open(folder))


def test_a_damaged_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        show(Run.open(folder))
