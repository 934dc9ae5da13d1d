"""How training differentiates a role labeller: the formula of ∇E, and on a GPU programs for common shapes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients import Checkpointed, Compiled, Written
from spen.protocols import GradientStrategy

__all__ = ["FormulaThenProgram", "strategy_for"]


def strategy_for(device: str) -> GradientStrategy:
    """``Written()`` on a CPU, where it is faster than a program (175 against 282 ms); else ``FormulaThenProgram()``."""
    return Written() if device == "cpu" else FormulaThenProgram()


class FormulaThenProgram(GradientStrategy):
    """``Written()`` for the first ``patience`` batches of a shape, ``Compiled(Checkpointed(), keep=1)`` after these.

    On an H200 a step takes 58 ms by the formula and 9 ms by a program, which takes 19 s to make for one shape: it pays
    from some 400 batches of that shape on. Batches of sentences have many shapes, so most stay with the formula.
    """

    def __init__(self, patience: int = 400) -> None:
        self.patience = patience
        self.program: GradientStrategy = Compiled(Checkpointed(), keep=1.0, patience=0)
        self._met: Counter[torch.Size] = Counter()

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        self._met[start.shape] += 1
        strategy = Written() if self._met[start.shape] <= self.patience else self.program
        return strategy.run(descend, potential, start)

    def __deepcopy__(self, memo: dict[int, Any]) -> FormulaThenProgram:
        return FormulaThenProgram(self.patience)  # programs belong to the energy that they were made for

    def __reduce__(self) -> tuple[Any, ...]:
        return FormulaThenProgram, (self.patience,)

    def __repr__(self) -> str:
        return f"FormulaThenProgram({self.patience})"
