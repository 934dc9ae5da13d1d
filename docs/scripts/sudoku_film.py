"""A film of a descent that solves a puzzle: the board at every step beside the energy.

spen train sudoku-small && python docs/scripts/sudoku_film.py runs/sudoku-4/sudoku-small/seed-0
"""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

matplotlib.use("agg")

from matplotlib import pyplot as plt
from PIL import Image

from spen.models import open_model
from spen.tasks.reasoning.data import one_hot
from spen.tasks.reasoning.metrics import obeys_the_rules
from spen.tasks.reasoning.sudoku import BOXES, generate

STEPS = 16
OUT = Path(__file__).parents[1] / "figures" / "sudoku.gif"


def draw(iterates: list[Tensor], energies: list[float], x: Tensor, t: int) -> Image.Image:
    """The board of y_t, digits as dark as they are probable, and the energies E(y_0) … E(y_t)."""
    figure, (board, curve) = plt.subplots(1, 2, figsize=(6.4, 3.0), width_ratios=[1, 1.1])
    side = x.shape[-1]
    high, wide = BOXES[side]
    for k in range(side + 1):
        board.axhline(k, color="black", linewidth=2 if k % high == 0 else 0.6)
        board.axvline(k, color="black", linewidth=2 if k % wide == 0 else 0.6)
    for cell in range(side * side):
        row, column = divmod(cell, side)
        if x[cell].any():
            board.text(column + 0.5, row + 0.5, str(int(x[cell].argmax()) + 1), ha="center", va="center", weight="bold")
            continue
        for digit, probability in enumerate(iterates[t][cell].tolist()):
            place = ((digit % wide + 0.5) / wide, (digit // wide + 0.5) / high)
            board.text(
                column + place[0],
                row + place[1],
                str(digit + 1),
                ha="center",
                va="center",
                color="tab:blue",
                alpha=min(1.0, probability),
                fontsize=4 + 6 * probability,
            )
    board.set(xlim=(0, side), ylim=(side, 0), xticks=[], yticks=[], aspect="equal", title=f"step {t}")
    curve.plot(range(t + 1), energies[: t + 1], marker="o", markersize=3)
    margin = 0.05 * (max(energies) - min(energies))
    curve.set(xlim=(-0.5, len(energies) - 0.5), ylim=(min(energies) - margin, max(energies) + margin))
    curve.set(xlabel="step", title="energy")
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    plt.close(figure)
    return Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE)


def main() -> None:
    model = open_model(sys.argv[1]).model
    assert model is not None
    for seed in range(100):  # the first puzzle that the model solves
        x = one_hot([generate(random.Random(seed), 4).clues])
        with torch.no_grad():
            path = model(x, steps=STEPS)
        if bool(obeys_the_rules(path.output, x)):
            break
    iterates, energies = [y[0] for y in (path.start, *path.outputs)], path.energies[:, 0].tolist()
    frames = [draw(iterates, energies, x[0], t) for t in range(STEPS + 1)]
    frames[0].save(OUT, save_all=True, append_images=frames[1:], duration=[400] * STEPS + [2000], loop=0)
    print(f"{OUT}: puzzle of seed {seed}")


if __name__ == "__main__":
    main()
