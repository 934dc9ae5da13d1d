"""Solved boards."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from spen.tasks.reasoning.sudoku import groups

__all__ = ["Solved", "by_clues", "cell_accuracy", "obeys_the_rules"]


class Solved(Metric):
    """The share of boards with every cell right."""

    higher_is_better = True
    right: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("right", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: Tensor) -> None:
        self.right += solved_boards(y, target).sum()
        self.total += len(y)

    def compute(self) -> Tensor:
        return self.right / self.total


def solved_boards(y: Tensor, target: Tensor) -> Tensor:
    """(B,) bool"""
    return (y.argmax(-1) == target.argmax(-1)).flatten(1).all(1)


def cell_accuracy(y: Tensor, x: Tensor, target: Tensor) -> float:
    """The share of empty cells with the right digit."""
    empty = x.sum(-1) == 0
    return float((y.argmax(-1) == target.argmax(-1))[empty].float().mean())


def by_clues(y: Tensor, x: Tensor, target: Tensor) -> dict[int, float]:
    """The share of solved boards for each number of clues."""
    clues, right = x.sum((1, 2)).long(), solved_boards(y, target).float()
    return {int(n): float(right[clues == n].mean()) for n in clues.unique()}


def obeys_the_rules(y: Tensor, x: Tensor) -> Tensor:
    """(B,) bool: every row, column and box has every digit, and the clues are kept. The solution is not looked at."""
    side = y.shape[-1]
    cells = torch.tensor(groups(side), device=y.device)
    digits = y.argmax(-1)
    placed = torch.nn.functional.one_hot(digits, side)
    complete = placed[:, cells].sum(2).eq(1).flatten(1).all(1)  # (B, groups, side in a group, digits)
    kept = ((placed - x) * x).eq(0).flatten(1).all(1)
    return complete & kept
