"""The tutorial's code, run in a small version: the energy must beat the feed-forward networks beside it."""

from __future__ import annotations

import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SIZE, SMALL = "GRIDS, EPOCHS = 3000, 4", "GRIDS, EPOCHS = 300, 20"
SCRIPT = runpy.run_path(str(DOCS / "scripts" / "tutorial.py"))
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("tutorial")
    code = [text for kind, text in SCRIPT["blocks"](PAGE) if kind == "python"]
    assert sum(SIZE in block for block in code) == 1
    return "".join(SCRIPT["run"]([block.replace(SIZE, SMALL) for block in code], folder)), folder


def shares(line: str, text: str) -> tuple[float, float]:
    """(cells, puzzles) of the line that begins so, in percent."""
    found = re.search(rf"^{re.escape(line)}.*?([\d.]+)% of hidden cells, +([\d.]+)% of puzzles", text, re.MULTILINE)
    assert found, line
    return float(found[1]), float(found[2])


def test_the_energy_beats_feed_forward_networks_of_its_size(printed: tuple[str, Path]) -> None:
    for text, margin in ((printed[0], 15), (PAGE, 80)):
        for network in ("feed-forward, 1350", "feed-forward, 18724"):
            energy, rival = shares("energy, 1317 weights", text), shares(network, text)
            assert energy[0] > rival[0] + 5
            assert energy[1] > rival[1] + margin


def test_more_clues_more_steps_and_one_more_rule_help(printed: tuple[str, Path]) -> None:
    for text in (printed[0], PAGE):
        assert shares("12 clues", text)[1] < shares("24 clues", text)[1]
        assert shares("T = 1 ", text)[1] < shares("T = 10", text)[1]
        assert shares("as trained", text)[1] < shares("with the diagonals", text)[1]
        assert "Exact() for EntropySmoothed on cpu: double backprop holds about " in text


def test_the_pictures_are_drawn_and_shown(printed: tuple[str, Path]) -> None:
    for name in ("tutorial-descent.png", "tutorial-learned.png"):
        assert (printed[1] / name).stat().st_size > 10_000
        assert (DOCS / "figures" / name).is_file()
        assert f"figures/{name}" in PAGE


def test_what_is_printed_stands_in_the_page() -> None:
    """Every block of output follows a block of code, and none is empty."""
    found = SCRIPT["blocks"](PAGE)
    for (before, _), (kind, text) in pairwise(found):
        if kind != "python":
            assert before == "python"
            assert text.strip()
