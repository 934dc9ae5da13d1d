"""Systems timed in turns."""

from __future__ import annotations

import re

import pytest

from benchmarks import turns


def test_every_system_gets_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    turns.main({2: 2}, height=8, width=12)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" median")[0].strip() for line in lines] == [f"T = 2: {name}" for name in turns.NAMES]
    assert lines[0].endswith("1.00 of plain PyTorch's turn")
    assert all(float(re.search(r"median +([\d.]+) ms", line)[1]) > 0 for line in lines)  # type: ignore[index]
