"""Puzzles, graphs and matrices as tensors. Of a puzzle, x (N, cells, digits) has a one where a clue is."""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from spen.tasks.locations import find_data
from spen.tasks.reasoning.graphs import connected, distances, random_graphs
from spen.tasks.reasoning.problems import ShortestPath
from spen.tasks.reasoning.sudoku import Board, Puzzle, easier, generate, parse_line, side_of

SPLITS = ("train", "dev", "test")

MADE = (20_000, 500, 1_000)
"""How many graphs and matrices are made for each split."""

GENERATED = {4: (512, 64, 256), 6: (512, 64, 256)}
"""How many puzzles of each size are made for train, dev and test."""

SHIPPED = {"train": slice(0, 600), "dev": slice(600, 750), "test": slice(750, 900)}
"""The splits of sudoku-9.csv.xz: generate(draw, 9, clues=20 + i % 15) for i = 0 … 899, draw = random.Random(9)."""

SIDES = {"satnet": 9, "rrn": 9, "sudoku-4": 4, "sudoku-6": 6, "sudoku-9": 9}
"""The size of board of each data set."""

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
    try:
        opener = lzma.open if path.suffix == ".xz" else open
        with opener(path, "rt", encoding="utf-8-sig") as file:  # spreadsheets begin with a byte order mark
            found = list(_parsed(path, file))
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is no text file with a puzzle on each line: {error}") from None
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
    """(x, y) of a split of a data set."""
    return SOURCES[data](split)


def _puzzles(puzzles: Sequence[Puzzle]) -> tuple[Tensor, Tensor]:
    return one_hot([p.clues for p in puzzles]), one_hot([p.solution for p in puzzles if p.solution is not None])


def _satnet(split: str) -> tuple[Tensor, Tensor]:
    """The development part ends with that of sudoku-9, whose puzzles have fewer clues.

    A model soon solves all of SAT-Net's own, and the best epoch could not be told.
    """
    puzzles = read_puzzles(find_data("reasoning", "satnet.csv.xz"))[SATNET[split]]
    return _puzzles([*puzzles, *(_shipped("dev") if split == "dev" else [])])


def _rrn(split: str) -> tuple[Tensor, Tensor]:
    return _puzzles(read_puzzles(find_data("reasoning", "rrn-validation.csv.xz")))


def _shipped(split: str) -> list[Puzzle]:
    return read_puzzles(Path(__file__).with_name("sudoku-9.csv.xz"))[SHIPPED[split]]


def _sudoku_9(split: str) -> tuple[Tensor, Tensor]:
    """To train on, also each puzzle with further clues of its solution, seven times: up to 42, as many as SAT-Net's."""
    puzzles, draw = _shipped(split), random.Random(0)
    return _puzzles(puzzles + [easier(p, draw, most=42) for p in puzzles * 7 if split == "train"])


def _generated(side: int, split: str) -> tuple[Tensor, Tensor]:
    """Split by the seed. Puzzles of 4×4 may share solutions: there are only 288 solved boards."""
    number = SPLITS.index(split)
    draw = random.Random(1000 * side + number)
    return _puzzles([generate(draw, side) for _ in range(GENERATED[side][number])])


def _connectivity(nodes: int, split: str) -> tuple[Tensor, Tensor]:
    """Every node has an edge to its nearest neighbour, or from those of which it is the nearest."""
    edges = random_graphs(_count(split), nodes, 1, directed=False, generator=_seeded(split, nodes))
    return edges, connected(edges)


def _paths(nodes: int, nearest: int, farthest: int, split: str) -> tuple[Tensor, Tensor]:
    """Up to n/2 edges from every node; start and goal are drawn among the pairs of a distance, which is drawn first."""
    generator, count, found = _seeded(split, nodes), _count(split), list[tuple[Tensor, Tensor]]()
    while sum(len(x) for x, _ in found) < count:
        edges = random_graphs(count, nodes, nodes // 2, directed=True, generator=generator)
        apart = distances(edges)
        wanted = torch.randint(nearest, farthest + 1, (count, 1, 1), generator=generator)
        fitting = (apart == wanted).flatten(1).float()
        some = fitting.any(1)
        pair = torch.multinomial(fitting[some], 1, generator=generator)[:, 0]
        start, goal = pair // nodes, pair % nodes
        away = apart[some][torch.arange(len(pair)), :, goal].clamp_max(ShortestPath.distances - 1).long()
        ends = torch.nn.functional.one_hot(torch.stack([goal, start], -1), nodes).mT.float()  # (B, n, 2)
        y = torch.nn.functional.one_hot(away, ShortestPath.distances).float()
        found.append((torch.cat([edges[some], ends], -1), y))
    x, y = (torch.cat(parts)[:count] for parts in zip(*found, strict=True))
    return x, y


def _inverse(side: int, smallest: float, split: str) -> tuple[Tensor, Tensor]:
    """2BBᵀ + ``smallest``·1 with B uniform in [−1, 1]: no eigenvalue is below ``smallest``."""
    b = 2 * torch.rand(_count(split), side, side, generator=_seeded(split, side)) - 1
    x = 2 * b @ b.mT + smallest * torch.eye(side)
    return x, torch.linalg.inv(x.double()).float().contiguous()


def _count(split: str) -> int:
    return MADE[SPLITS.index(split)]


def _seeded(split: str, size: int) -> torch.Generator:
    return torch.Generator().manual_seed(10 * size + SPLITS.index(split))


SOURCES: Mapping[str, Callable[[str], tuple[Tensor, Tensor]]] = {
    "satnet": _satnet,
    "rrn": _rrn,
    "sudoku-4": partial(_generated, 4),
    "sudoku-6": partial(_generated, 6),
    "sudoku-9": _sudoku_9,
    "connectivity-12": partial(_connectivity, 12),
    "connectivity-18": partial(_connectivity, 18),
    "paths-15": partial(_paths, 15, 2, 5),
    "paths-25": partial(_paths, 25, 4, 6),
    "inverse-20": partial(_inverse, 20, 0.5),
    "inverse-20-hard": partial(_inverse, 20, 0.1),
}
