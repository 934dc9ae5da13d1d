"""The tab of puzzles: a board, a trained solver, and the board at every step of its descent."""

from __future__ import annotations

import random
from typing import Any, cast

import gradio as gr
import torch
from torch import Tensor

from spen.tasks.charts import draw_lines
from spen.tasks.reasoning.data import one_hot
from spen.tasks.reasoning.metrics import obeys_the_rules
from spen.tasks.reasoning.opened import ReasoningModel
from spen.tasks.reasoning.sudoku import BOXES, format_board, generate, groups, parse_line
from spen.viewer.iterates import SMALL, with_slider
from spen.viewer.tabs import LandscapeButton, Page

STEPS, RESTARTS = 200, 64
"""The most that a visitor may ask for."""


class SudokuTab:
    """Its methods may be called by anybody, with anything; what is wrong is an error."""

    title = "Sudoku"
    style = """
.board { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.board td { width: 2.1rem; height: 2.1rem; text-align: center; border: 1px solid var(--border-color-primary); }
.board td.right { border-right: 2px solid currentColor; }
.board td.below { border-bottom: 2px solid currentColor; }
.board td.clue { font-weight: 700; background: var(--background-fill-secondary); }
.board td.clash { color: #cf222e; }
"""
    page: Page

    def fill(self, page: Page) -> list[LandscapeButton]:
        self.page = page
        names = page.models(runs_first=True)
        with gr.Row():
            with gr.Column(scale=1, min_width=330):
                system = gr.Dropdown(names, value=names[0], label="Solver", elem_id="solver")
                line = gr.Textbox(self.draw(9), label="Puzzle, row by row; . is an empty cell", elem_id="puzzle")
                side = gr.Dropdown(list(BOXES), value=9, label="Size of a new puzzle")
                new = gr.Button("New puzzle", elem_id="new-puzzle")
                steps = gr.Slider(1, STEPS, 64, step=1, label="Steps")
                restarts = gr.Slider(1, RESTARTS, 64, step=1, label="Restarts")
                run = gr.Button("Solve", variant="primary", elem_id="solve")
            with gr.Column(scale=2, min_width=420):
                answer = page.hint("The board appears here at every step of the descent.", "solved")
        new.click(self.draw, side, line, **page.light)
        run.click(page.report_errors(self.solve), [system, line, steps, restarts], answer, **page.descent)
        return [LandscapeButton("Of the puzzle", "puzzle-landscape", [system, line], self.landscape)]

    def draw(self, side: Any) -> str:
        """A new puzzle of this size."""
        return format_board(generate(random.Random(), int(side) if side in BOXES else 9).clues)

    def solve(self, system: str, line: str, steps: Any, restarts: Any) -> str:
        """The descent that found the answer, as boards under a slider."""
        solver, x = self._solver(system), self._clues(line)
        steps, restarts = _between(steps, STEPS, "steps"), _between(restarts, RESTARTS, "restarts")
        model = solver.model
        found = solver.search(x, steps=steps, restarts=restarts)
        right = bool(obeys_the_rules(found.output, x))
        number, tried = int(found.selected), int((found.steps_used > 0).sum())
        with torch.no_grad():
            path = model(x, steps=max(1, int(found.steps_used[number])), start=found.start)
        parts = [f'<div data-t="{t}">{_table(y[0], x[0])}</div>' for t, y in enumerate([path.start, *path.outputs])]
        energies = [float(energy - path.energies[0, 0]) for energy in path.energies[:, 0]]
        charts = [draw_lines("energy, less that of the start", {"energy": energies}, cursor=True, size=SMALL)]
        if tried > 1:
            ends = (found.energies[:tried, 0] - found.energies[:tried, 0].nan_to_num(torch.inf).amin()).tolist()
            title = "last energies, less the lowest"
            charts.append(draw_lines(title, {"energy": ends}, x="descent", first=1, size=SMALL))
        verdict = f"{'solved' if right else 'not solved'}: descent {number + 1} of {tried}"
        below = f'<div class="charts">{"".join(charts)}</div>'
        return f"<h4>{verdict}</h4>{with_slider([*parts, below], len(path.outputs))}"

    def landscape(self, system: str, line: str, progress: Any = None) -> str:
        """The energy around the answer for a puzzle."""
        solver, x = self._solver(system), self._clues(line)
        return self.page.landscape(
            solver.model, x, size=31, what=f"{system} on {(line or '').strip()}", progress=progress
        )

    def _solver(self, name: str) -> ReasoningModel:
        solver = cast(ReasoningModel, self.page.open(name))
        if solver.system.problem != "sudoku":
            raise ValueError(f"{name} solves no sudoku; choose another run")
        return solver

    @staticmethod
    def _clues(line: str) -> Tensor:
        return one_hot([parse_line(line or "").clues])


def _between(value: Any, most: int, name: str) -> int:
    if not isinstance(value, int | float) or not 1 <= value <= most:
        raise ValueError(f"{name} go from 1 to {most}, not {value!r}")
    return int(value)


def _table(y: Tensor, clues: Tensor) -> str:  # (cells, digits)
    """A board: clues bold, other digits as dark as they are probable, those that break a rule red."""
    side = y.shape[-1]
    high, wide = BOXES[side]
    sure, digits = y.max(-1)
    given = clues.sum(-1) > 0
    shown = torch.where(given, clues.argmax(-1), digits).tolist()
    clash = {c for g in groups(side) for c in g if sum(shown[k] == shown[c] for k in g) > 1}
    rows = []
    for r in range(side):
        cells = []
        for c in range(side):
            i = side * r + c
            kinds = [
                *(["clue"] if given[i] else []),
                *(["clash"] if i in clash and not given[i] else []),
                *(["right"] if (c + 1) % wide == 0 and c + 1 < side else []),
                *(["below"] if (r + 1) % high == 0 and r + 1 < side else []),
            ]
            ink = 1.0 if given[i] else 0.15 + 0.85 * float(sure[i])
            cells.append(f'<td class="{" ".join(kinds)}"><span style="opacity:{ink:.2f}">{shown[i] + 1}</span></td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="board">{"".join(rows)}</table>'
