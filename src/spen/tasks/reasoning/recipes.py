"""What can be trained, and the options of each. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """``kind`` energy descends a learned energy; feedforward and recurrent are networks without one.

    ``problem`` names one of ``problems.PROBLEMS``.
    """

    about: str
    published: float | None = None
    problem: str = "sudoku"
    kind: Literal["energy", "feedforward", "recurrent"] = "energy"
    width: int = 32
    rounds: int = 3
    steps: int = 16
    rate: float = 0.3
    momentum: float = 0.5
    entropy: float = 0.1
    step_aware: bool = False
    detached: bool = False
    draw_steps: tuple[int, ...] = ()
    noise: float = 0.0
    rate_limit: float | None = None
    replay: float = 0.0
    hidden_clues: float = 0.0
    every_iterate: bool = False
    batch_size: int = 64
    epochs: int = 100
    seconds: float | None = None
    learning_rate: float = 2e-3
    decay_to: float = 0.05
    average: float = 0.0


_GRAPH = Recipe("", width=16, rounds=2, steps=12, epochs=2, learning_rate=3e-3, average=0.99)
_INVERSE = Recipe(
    "", problem="inverse", width=16, rounds=2, steps=24, rate=0.03, momentum=0.7, entropy=0.0, epochs=2, average=0.99
)


def _baselines(name: str, energy: Recipe, feedforward: int, recurrent: int, width: int) -> dict[str, Recipe]:
    """Networks of the size of an energy: so many rounds with weights of their own, or one round so many times."""
    return {
        f"{name}-feedforward": replace(
            energy, about=f"a network of {feedforward} rounds", published=None, kind="feedforward", rounds=feedforward
        ),
        f"{name}-recurrent": replace(
            energy,
            about=f"one round with shared weights, {recurrent} times",
            published=None,
            kind="recurrent",
            width=width,
            rounds=recurrent,
        ),
    }


_SUDOKU = Recipe(
    "a learned energy of 9×9 boards, descended",
    99.4,
    width=16,
    hidden_clues=0.45,
    batch_size=32,
    epochs=4,
    learning_rate=3e-3,
    average=0.99,
)
_CONNECTIVITY = replace(_GRAPH, about="which nodes of a graph a path connects", published=99.1, problem="connectivity")
_PATH = replace(_GRAPH, about="distances to a goal, and the next step", published=92.6, problem="shortest-path")
_MATRIX = replace(_INVERSE, about="the inverse of a 20×20 matrix; mean squared error, published 0.0095")

RECIPES = {
    "sudoku": _SUDOKU,
    "sudoku-small": Recipe(
        "the same for 4×4, in seconds on a CPU", width=12, rounds=2, steps=8, epochs=8, learning_rate=5e-3
    ),
    # Repeated 32 times, or at a rate of 3e-3, the recurrent network diverges.
    **_baselines("sudoku", replace(_SUDOKU, learning_rate=1e-3), 4, 16, 30),
    "connectivity": _CONNECTIVITY,
    **_baselines("connectivity", _CONNECTIVITY, 2, 12, 24),
    "shortest-path": _PATH,
    **_baselines("shortest-path", _PATH, 2, 12, 24),
    "inverse": _MATRIX,
    **_baselines("inverse", _MATRIX, 2, 12, 24),
}
"""``published``: IRED's (Du, Mao and Tenenbaum 2024) share of SAT-Net's test puzzles that is solved, of pairs of nodes
that are right, and of next steps that are right, in percent."""
