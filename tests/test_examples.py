"""Every example runs as it is, in a small version, shows what it claims, and draws it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _run(name: str, folder: Path, updates: int = 60) -> str:
    variables = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "SPEN_EXAMPLE_UPDATES": str(updates)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "examples" / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **variables},
        cwd=folder,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width >= 1000
    return result.stdout


def test_three_ways(tmp_path: Path) -> None:
    shares = [float(v) for v in re.findall(r"([\d.]+) % of new labels right", _run("three_ways", tmp_path))]
    assert len(shares) == 3
    assert shares[1] > shares[0] + 10
    assert shares[2] > shares[0] + 5


def test_partly_known(tmp_path: Path) -> None:
    assert "16 of 16 cells right" in _run("partly_known", tmp_path)


def test_denoise_image(tmp_path: Path) -> None:
    printed = _run("denoise_image", tmp_path)
    noisy, variation, energy = (float(v) for v in re.findall(r"([\d.]+) dB", printed))
    assert noisy == pytest.approx(20.2, abs=0.2)
    assert energy > variation


def test_label_sets(tmp_path: Path) -> None:
    printed = _run("label_sets", tmp_path, updates=200)
    alone, energy = ([float(v) for v in re.findall(r"([\d.]+)%", line)] for line in printed.splitlines())
    assert energy[0] > alone[0], "whole sets right"
    assert energy[1] > alone[1] + 5, "sets that exist"


def test_interatomic_forces(tmp_path: Path) -> None:
    printed = _run("interatomic_forces", tmp_path, updates=150)
    untrained, energies, forces = (float(v) for v in re.findall(r"force error ([\d.]+)", printed))
    assert forces < 0.5 * energies < 0.5 * untrained


def test_hidden_characters(tmp_path: Path) -> None:
    printed = _run("hidden_characters", tmp_path, updates=20)
    losses = dict(re.findall(r"after +(\d+) steps ([\d.]+) nats", printed))
    assert float(losses["8"]) < float(losses["1"]) - 0.02, "more steps, a lower loss"
    assert float(losses["32"]) < float(losses["8"]) + 0.3, "past the trained number it does not explode"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_are_short_and_in_the_gallery(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 90
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert f"python examples/{path.name}" in page
    assert f"figures/gallery/{path.stem}.png" in page
    assert (ROOT / "docs" / "figures" / "gallery" / f"{path.stem}.png").is_file()


def test_what_the_gallery_says_was_printed() -> None:
    """The page quotes the lines of a full run; the small runs above hold the claims, this holds the form."""
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    quoted = (r"your energy: \d\d\.\d\d dB", r"an energy +F1 0\.\d{3}", "16 of 16 cells", r"end to end +\d\d\.\d %")
    quoted += (r"energies and forces force error 0\.\d{3}", r"after  8 steps \d\.\d{3} nats")
    for line in quoted:
        assert re.search(line, page), line
