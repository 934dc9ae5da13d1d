"""What can be trained, and the options of each. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """``kind`` energy descends a learned energy; feedforward and recurrent are networks without one."""

    about: str
    published: float | None = None
    kind: Literal["energy", "feedforward", "recurrent"] = "energy"
    width: int = 32
    rounds: int = 3
    steps: int = 16
    rate: float = 0.3
    momentum: float = 0.5
    entropy: float = 0.1
    step_aware: bool = False
    detached: bool = False
    compiled: bool = False
    draw_steps: tuple[int, ...] = ()
    noise: float = 0.0
    rate_limit: float | None = None
    every_iterate: bool = False
    batch_size: int = 64
    epochs: int = 100
    seconds: float | None = None
    learning_rate: float = 2e-3
    decay_to: float = 0.05
    average: float = 0.0


RECIPES = {
    "sudoku": Recipe("a learned energy of 9×9 boards, descended", 99.4, average=0.999),
    "sudoku-small": Recipe(
        "the same for 4×4, in a minute on a CPU", width=12, rounds=2, steps=8, epochs=8, learning_rate=5e-3
    ),
    "sudoku-feedforward": Recipe("a network of 4 rounds, without an energy", kind="feedforward", rounds=4),
    "sudoku-recurrent": Recipe("one round with shared weights, 32 times", 99.8, kind="recurrent", width=64, rounds=32),
}
"""``published``: IRED's (Du, Mao and Tenenbaum 2024) and recurrent relational networks' (Palm et al. 2018) share of
SAT-Net's test puzzles that is solved, in percent."""
