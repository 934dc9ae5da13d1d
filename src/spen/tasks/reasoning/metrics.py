"""What is right: boards, cells, entries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from spen.tasks.reasoning.sudoku import groups


class Share(MeanMetric):
    """The mean of ``right(y, target)`` over all that it returns."""

    higher_is_better = True  # type: ignore[assignment]

    def __init__(self, right: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.set_dtype(torch.float64)
        self.right = right

    def update(self, y: Tensor, target: Tensor) -> None:  # type: ignore[override]
        super().update(self.right(y, target))


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
