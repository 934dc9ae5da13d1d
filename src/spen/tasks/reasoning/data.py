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

GENERATED = {4: (512, 64, 256), 6: (512, 64, 256)}
"""How many puzzles of each size are made for train, dev and test."""

SHIPPED = {"train": slice(0, 600), "dev": slice(600, 750), "test": slice(750, 900)}
"""The splits of sudoku-9.csv.xz: generate(draw, 9, clues=20 + i % 15) for i = 0 … 899, draw = random.Random(9)."""

SATNET = {"train": slice(0, 8700), "dev": slice(8700, 9000), "test": slice(9000, 10000)}


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
    """(x, y) of a split of satnet, rrn or sudoku-SIDE.

    The development part of satnet ends with that of sudoku-9, whose puzzles have fewer clues: a model soon solves all
    the others, and the best epoch could not be told.
    """
    if data == "sudoku-9":
        puzzles = _shipped(split)
    elif data.startswith("sudoku-"):
        puzzles = _generated(int(data.removeprefix("sudoku-")), split)
    elif data == "satnet":
        puzzles = read_puzzles(find_data("reasoning", "satnet.csv.xz"))[SATNET[split]]
        puzzles += _shipped("dev") if split == "dev" else []
    elif split == "test":
        puzzles = read_puzzles(find_data("reasoning", "rrn-validation.csv.xz"))
    else:
        raise ValueError(f"{data} is for tests alone; train on satnet")
    return one_hot([p.clues for p in puzzles]), one_hot([p.solution for p in puzzles if p.solution is not None])


def _shipped(split: str) -> list[Puzzle]:
    return read_puzzles(Path(__file__).with_name("sudoku-9.csv.xz"))[SHIPPED[split]]


def _generated(side: int, split: str) -> list[Puzzle]:
    """Split by the seed. Puzzles of 4×4 may share solutions: there are only 288 solved boards."""
    number = ("train", "dev", "test").index(split)
    draw = random.Random(1000 * side + number)
    return [generate(draw, side) for _ in range(GENERATED[side][number])]
