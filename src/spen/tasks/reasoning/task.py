"""Puzzles in, solutions out. Imports no torch until something is trained or opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spen.tasks.reasoning.recipes import RECIPES, Recipe
from spen.tasks.simple import SimpleOpened, SimpleTask
from spen.tasks.task import Dataset

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from spen.model import SPEN
    from spen.training import Stage


class ReasoningTask(SimpleTask):
    """Sudoku: x holds the clues, y all digits."""

    name = "reasoning"
    unit = "published % solved"
    measure = "solved"
    batch_size = 500
    systems = RECIPES
    datasets = {
        "satnet": Dataset("satnet", "10,000 sudokus of 31 to 42 clues (SAT-Net)", "reasoning/satnet.csv.xz"),
        "rrn": Dataset(
            "rrn", "18,000 hard sudokus of 17 to 34 clues, for tests", "reasoning/rrn-validation.csv.xz", trains=False
        ),
        "sudoku-4": Dataset("sudoku-4", "sudokus of 4×4 with as few clues as can be, made when they are asked for"),
        "sudoku-6": Dataset("sudoku-6", "the same of 6×6"),
        "sudoku-9": Dataset("sudoku-9", "900 sudokus of 9×9 with 20 clues or more, made by the generator"),
    }
    tab = "spen.tasks.reasoning.tab:SudokuTab"
    examples = {
        "train": ("spen train sudoku-small",),
        "evaluate": ("spen evaluate runs/sudoku-4/sudoku-small/seed-0 --steps 32 --restarts 8",),
        "predict": ("spen predict runs/sudoku-4/sudoku-small/seed-0 puzzles.txt --restarts 8",),
    }

    def default_data(self, recipe: str) -> str:
        return "sudoku-4" if recipe == "sudoku-small" else "satnet"

    @property
    def opened(self) -> type[SimpleOpened]:
        from spen.tasks.reasoning.opened import PuzzleSolver

        return PuzzleSolver

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        super().check(recipe, data, settings)
        if not self.datasets[data].trains:
            raise ValueError(f"{data} is for tests alone; train on satnet")

    def model(self, system: Recipe) -> SPEN:
        from spen.tasks.reasoning.build import build

        return build(system)

    def stages(self, system: Recipe) -> Sequence[Stage]:
        from spen.tasks.reasoning.build import stages

        return stages(system)

    def metric(self) -> Metric:
        from spen.tasks.reasoning.metrics import Solved

        return Solved()

    def examples_of(self, data: str, split: str) -> tuple[Tensor, Tensor]:
        from spen.tasks.reasoning.data import examples

        return examples(data, split)

    def solved(self) -> Callable[[Tensor, Tensor], Tensor]:
        from spen.tasks.reasoning.metrics import obeys_the_rules

        return obeys_the_rules

    def details(self, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        from spen.tasks.reasoning.metrics import by_clues, cell_accuracy

        return {"empty cells right": cell_accuracy(answers, x, y), "solved by clues": by_clues(answers, x, y)}


TASK = ReasoningTask()
