"""The tab of puzzles, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("gradio", reason="the viewer's extra is not installed")

from spen import tasks
from spen.tasks.reasoning.sudoku import parse_line, solutions
from spen.tasks.reasoning.tab import SudokuTab
from spen.tasks.task import TrainOrder
from spen.viewer.catalogue import Catalogue
from spen.viewer.tabs import Page, report_errors

PUZZLE = "12.............."


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> SudokuTab:
    """With one run, of a model that has hardly been trained."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {"epochs": "1", "width": "2", "rounds": "1", "steps": "2", "batch_size": "512"}
    task = tasks.find("reasoning")
    task.train(TrainOrder("sudoku-small", "sudoku-4", folder / "one", device="cpu", settings=settings))
    tab = SudokuTab()
    tab.page = Page(task, tab.title, Catalogue([folder]), folder)
    return tab


def test_a_puzzle_is_solved_step_by_step(tab: SudokuTab) -> None:
    name = tab.page.models(runs_first=True)[0]
    html = tab.solve(name, PUZZLE, 5, 3)
    assert html.count('<table class="board">') == 6  # y_0 … y_5
    assert html.count('class="clue') == 2 * 6
    assert html.count('class="cursor"') == 6  # the energy at each of them
    assert "not solved: descent" in html
    assert "last energies, less the lowest" in html
    assert "last energies, less the lowest" not in tab.solve(name, PUZZLE, 5, 1)


def test_the_slider_shows_the_descent_that_found_the_answer(tab: SudokuTab, monkeypatch: pytest.MonkeyPatch) -> None:
    name = tab.page.models(runs_first=True)[0]
    shown: list[Tensor] = []
    monkeypatch.setattr("spen.tasks.reasoning.tab._table", lambda y, clues: shown.append(y) or "")
    html = tab.solve(name, PUZZLE, 7, 4)
    found = tab._solver(name).search(tab._clues(PUZZLE), steps=7, restarts=4)
    assert f"descent {int(found.selected) + 1} of 4" in html
    assert torch.equal(shown[-1], found.output[0])


def test_the_shipped_solver_is_on_the_page(tab: SudokuTab) -> None:
    assert "sudoku" in tab.page.models()
    line = "003020600900305001001806400008102900700000008006708200002609500800203009005010300"
    assert "<h4>solved: descent 1 of 1" in tab.solve("sudoku", line, 64, 8)


def test_a_new_puzzle_has_one_solution(tab: SudokuTab) -> None:
    assert len(solutions(parse_line(tab.draw(4)).clues)) == 1
    assert len(tab.draw("nonsense")) == 81


def test_mistakes_are_one_sentence_each(tab: SudokuTab, tmp_path: Path) -> None:
    name = tab.page.models(runs_first=True)[0]
    for arguments, sentence in (
        ((name, "12", 5, 3), "a board has 16, 36, 64, 81 cells, not 2"),
        ((name, PUZZLE, 0, 3), "steps go from 1 to 200, not 0"),
        ((name, PUZZLE, 5, "many"), "restarts go from 1 to 64, not &#x27;many&#x27;"),
        (("other", PUZZLE, 5, 3), "there is no sudoku system &#x27;other&#x27; on this page"),
    ):
        assert sentence in report_errors(tab.solve)(*arguments)


def test_the_landscape_of_a_puzzle(tab: SudokuTab, monkeypatch: pytest.MonkeyPatch) -> None:
    name = tab.page.models(runs_first=True)[0]
    seen = {}
    show = staticmethod(lambda model, x, **options: seen.update(x=x, **options) or "shown")
    monkeypatch.setattr(Page, "landscape", show)
    assert tab.landscape(name, PUZZLE) == "shown"
    assert seen["x"].shape == (1, 16, 4)
    assert seen["what"].endswith(PUZZLE)
