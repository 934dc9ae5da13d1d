"""Puzzles as tensors: x (N, cells, digits) has a one where a clue is and zeros elsewhere, y the whole solution."""

from __future__ import annotations

import lzma
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from spen.tasks.locations import find_data
from spen.tasks.reasoning.sudoku import Board, Puzzle, generate, parse_line, side_of

__all__ = ["boards", "examples", "one_hot", "read_puzzles"]

GENERATED = {4: (512, 64, 256), 6: (512, 64, 256), 9: (400, 50, 100)}
"""How many puzzles of each built-in size there are for train, dev and test."""

_SPLITS = {"train": slice(0, 8700), "dev": slice(8700, 9000), "test": slice(9000, 10000)}


def one_hot(boards: Sequence[Board]) -> Tensor:
    """(N, cells, digits); an empty cell is a row of zeros."""
    side = side_of(boards[0])
    if any(len(board) != len(boards[0]) for board in boards):
        raise ValueError("all boards of a batch have one size")
    digits = torch.tensor(boards)[..., None]
    return (digits == torch.arange(1, side + 1)).float()


def boards(y: Tensor) -> list[Board]:
    """The most probable digit of every cell."""
    return [tuple(board) for board in (y.argmax(-1) + 1).tolist()]


def read_puzzles(path: Path) -> list[Puzzle]:
    """A text file with a puzzle on each line (``parse_line``); .xz is read compressed. A heading is left out."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        found = list(_parsed(path, file))
    if not found:
        raise ValueError(f"{path} has no puzzle in it")
    if len({p.side for p in found}) > 1:
        raise ValueError(f"{path} has boards of several sizes; a model solves one size at a time")
    return found


def _parsed(path: Path, lines: Iterator[str]) -> Iterator[Puzzle]:
    for number, line in enumerate(lines, start=1):
        heading = number == 1 and not any(sign.isdigit() or sign == "." for sign in line)
        if not line.strip() or line.startswith("#") or heading:
            continue
        try:
            yield parse_line(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


@cache
def examples(data: str, split: str) -> tuple[Tensor, Tensor]:
    """(x, y) of a split of satnet, rrn or sudoku-SIDE."""
    if data.startswith("sudoku-"):
        puzzles = _generated(int(data.removeprefix("sudoku-")), split)
    elif data == "satnet":
        puzzles = read_puzzles(find_data("reasoning", "satnet.csv.xz"))[_SPLITS[split]]
    elif split == "test":
        puzzles = read_puzzles(find_data("reasoning", "rrn-validation.csv.xz"))
    else:
        raise ValueError(f"{data} is for tests alone; train on satnet")
    return one_hot([p.clues for p in puzzles]), one_hot([p.solution for p in puzzles if p.solution is not None])


def _generated(side: int, split: str) -> list[Puzzle]:
    """Split by the seed. Puzzles of 4×4 may come in two splits: there are only 288 solved boards."""
    number = ("train", "dev", "test").index(split)
    draw = random.Random(1000 * side + number)
    return [generate(draw, side) for _ in range(GENERATED[side][number])]
