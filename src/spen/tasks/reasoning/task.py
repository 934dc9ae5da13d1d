"""Questions whose answers must obey rules. Imports no torch until something is trained or opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spen.tasks.reasoning.recipes import RECIPES, Recipe
from spen.tasks.simple import SimpleOpened, SimpleTask
from spen.tasks.task import Dataset

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from spen.model import SPEN
    from spen.tasks.reasoning.problems import Problem
    from spen.training import Stage


DATA = {
    "sudoku": ("satnet", "rrn", "sudoku-4", "sudoku-6", "sudoku-9"),
    "connectivity": ("connectivity-12", "connectivity-18"),
    "shortest-path": ("paths-15", "paths-25"),
    "inverse": ("inverse-20", "inverse-20-hard"),
}
"""The data sets of each problem, first the one that is trained on."""


class ReasoningTask(SimpleTask):
    """Sudoku (x holds the clues, y all digits), questions about graphs, the inverse of a matrix."""

    name = "reasoning"
    unit = "published %: boards solved, pairs or next steps right"
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
        "connectivity-12": Dataset("connectivity-12", "random graphs of 12 nodes, made when they are asked for"),
        "connectivity-18": Dataset("connectivity-18", "the same of 18 nodes, for tests", trains=False),
        "paths-15": Dataset("paths-15", "directed graphs of 15 nodes with start and goal, 2 to 5 steps apart"),
        "paths-25": Dataset("paths-25", "the same of 25 nodes, 4 to 6 steps apart, for tests", trains=False),
        "inverse-20": Dataset("inverse-20", "positive definite 20×20 matrices, eigenvalues of 0.5 and more"),
        "inverse-20-hard": Dataset(
            "inverse-20-hard", "the same with eigenvalues of 0.1 and more, for tests", trains=False
        ),
    }
    tab = "spen.tasks.reasoning.tab:SudokuTab"
    examples = {
        "train": ("spen train sudoku-small",),
        "evaluate": ("spen evaluate runs/sudoku-4/sudoku-small/seed-0 --steps 32 --restarts 8",),
        "predict": ("spen predict runs/sudoku-4/sudoku-small/seed-0 puzzles.txt --restarts 8",),
    }

    def default_data(self, recipe: str) -> str:
        return "sudoku-4" if recipe == "sudoku-small" else DATA[self.systems[recipe].problem][0]

    @property
    def opened(self) -> type[SimpleOpened]:
        from spen.tasks.reasoning.opened import ReasoningModel

        return ReasoningModel

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        super().check(recipe, data, settings)
        if not self.datasets[data].trains or data not in DATA[self.systems[recipe].problem]:
            why = (
                "is for tests alone"
                if not self.datasets[data].trains
                else f"asks other questions than {recipe} answers"
            )
            raise ValueError(f"{data} {why}; train on {self.default_data(recipe)}")

    def model(self, system: Recipe) -> SPEN:
        from spen.tasks.reasoning.build import build

        return build(system)

    def stages(self, system: Recipe) -> Sequence[Stage]:
        from spen.tasks.reasoning.build import stages

        return stages(system)

    def measure_of(self, system: Recipe) -> str:
        return _problem(system).measure

    def metric(self, system: Recipe) -> Metric:
        return _problem(system).metric()

    def examples_of(self, data: str, split: str) -> tuple[Tensor, Tensor]:
        from spen.tasks.reasoning.data import examples

        if split != "test" and not self.datasets[data].trains:
            raise ValueError(f"{data} is for tests alone")
        return examples(data, split)

    def read(self, path: Path, **options: Any) -> Tensor:
        """x of a graph or a matrix, an array in a .npy file; for paths with two more columns, goal and start."""
        import numpy as np
        import torch

        if path.suffix != ".npy":
            raise ValueError(f"{path} is no .npy file: a graph or a matrix is read from an array")
        return torch.from_numpy(np.load(path, allow_pickle=False)).float()

    def write(self, answer: Tensor, path: Path, **options: Any) -> None:
        import numpy as np

        np.save(path.with_suffix(".npy"), answer.numpy(), allow_pickle=False)

    def solved(self, system: Recipe) -> Callable[[Tensor, Tensor], Tensor] | None:
        return _problem(system).solved()

    def details(self, system: Recipe, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        return _problem(system).details(answers, x, y)


def _problem(system: Recipe) -> Problem:
    from spen.tasks.reasoning.problems import PROBLEMS

    return PROBLEMS[system.problem]


TASK = ReasoningTask()
