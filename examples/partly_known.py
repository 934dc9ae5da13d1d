"""Fill in a partly known structure: the known part of y is held by an energy term, the rest follows.

    python examples/partly_known.py                 # seconds; writes partly_known.png

An energy over 4 × 4 Latin squares (every number once in each row and column) is written down, not learned: soft
constraints ¬(a ∧ b) between cells that see each other. Some cells are given; the descent finds the others.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import spen
from spen.domains import Simplex
from spen.energies import EntropySmoothed, Linear, SoftNand
from spen.rules import Momentum

N = 4
SOLUTION = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
GIVEN = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)


def same_line(y: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of cells in one row or one column that must not hold the same number. y (B, N, N, N)."""
    first, second = torch.triu_indices(N, N, offset=1)
    rows = y[:, :, first], y[:, :, second]
    columns = y[:, first], y[:, second]
    return (
        torch.cat([rows[0].flatten(1), columns[0].flatten(1)], 1),
        torch.cat([rows[1].flatten(1), columns[1].flatten(1)], 1),
    )


def show(numbers: Tensor, visible: Tensor) -> str:
    cells = [str(v) if seen else "." for v, seen in zip(numbers.flatten().tolist(), visible.flatten(), strict=True)]
    return " / ".join("".join(cells[i : i + N]) for i in range(0, N * N, N))


def draw(axis: plt.Axes, y: Tensor, title: str) -> None:
    """Every number a cell may hold, as large as it is likely; given cells on grey."""
    axis.set(title=title, xlim=(0, N), ylim=(N, 0), xticks=range(N + 1), yticks=range(N + 1), aspect="equal")
    axis.set(xticklabels=[], yticklabels=[])
    axis.grid(True)
    for r, c in torch.cartesian_prod(torch.arange(N), torch.arange(N)).tolist():
        if GIVEN[r, c]:
            axis.add_patch(plt.Rectangle((c, r), 1, 1, color="0.88"))
        for k, chance in enumerate(y[r, c].clip(1e-3).tolist()):
            place = (c + 0.5, r + 0.5) if chance > 0.75 else (c + 0.27 + 0.46 * (k % 2), r + 0.27 + 0.46 * (k // 2))
            axis.text(*place, str(k), ha="center", va="center", fontsize=18 * chance**0.7)


def main() -> None:
    known = torch.nn.functional.one_hot(SOLUTION, N).float() * GIVEN[..., None]
    scores = 20 * known[None]  # a given cell prefers its number by far; the others have no preference
    energy = EntropySmoothed(Linear() + SoftNand(same_line, weight=6.0, temperature=20.0), 0.1)
    minimizer = spen.Minimizer(Simplex(), Momentum(200, 0.05, decay=0.9), stop=spen.RelativeChange(1e-5))
    trajectory = minimizer(energy, scores, scores.clone())
    answer = trajectory.output[0].argmax(-1)
    print("given", show(SOLUTION, GIVEN))
    print("found", show(answer, torch.ones_like(GIVEN)))
    print(f"{int((answer == SOLUTION).sum())} of {N * N} cells right after {int(trajectory.steps_used[0])} steps")
    figure, axes = plt.subplots(1, 5, figsize=(13, 2.9), layout="constrained")
    iterates = [trajectory.start, *trajectory.outputs]
    for axis, t in zip(axes, (0, 1, 2, 4, int(trajectory.steps_used[0])), strict=True):
        draw(axis, iterates[t][0], f"step {t}")
    figure.savefig("partly_known.png", dpi=100)


if __name__ == "__main__":
    main()
