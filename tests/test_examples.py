"""Every example runs as it is, in a small version, and shows what it claims."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def _run(name: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPEN_EXAMPLE_UPDATES": "60"}
    result = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_three_ways() -> None:
    shares = [float(v) for v in re.findall(r"([\d.]+) % of new labels right", _run("three_ways.py"))]
    assert len(shares) == 3
    assert shares[1] > shares[0] + 10
    assert shares[2] > shares[0] + 5


def test_partly_known() -> None:
    assert "16 of 16 cells right" in _run("partly_known.py")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
