"""Sudoku of 4×4 to 9×9: rules, a solver on bit masks, a generator of puzzles with one solution, and text formats.

A board is a tuple of side² whole numbers, row by row; 0 is an empty cell.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

Board = tuple[int, ...]
Near = tuple[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], ...]
"""The groups of each cell, and the other cells of these."""

BOXES = {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3)}
"""The height and width of a box, by the side of the board."""


@dataclass(frozen=True)
class Puzzle:
    """A board with empty cells, and its solution if that is known."""

    clues: Board
    solution: Board | None = None

    @property
    def side(self) -> int:
        return side_of(self.clues)


def side_of(board: Sequence[int]) -> int:
    """The side of a board of so many cells."""
    for side in BOXES:
        if side * side == len(board):
            return side
    sizes = ", ".join(str(side * side) for side in BOXES)
    raise ValueError(f"a board has {sizes} cells, not {len(board)}")


@cache
def groups(side: int) -> tuple[tuple[int, ...], ...]:
    """The cells of every row, column and box: 3·side groups, each of which holds every digit once."""
    if side not in BOXES:
        raise ValueError(f"the side of a board is {', '.join(map(str, BOXES))}, not {side}")
    high, wide = BOXES[side]
    span = range(side)
    rows = [tuple(side * r + c for c in span) for r in span]
    columns = [tuple(side * r + c for r in span) for c in span]
    boxes = [
        tuple(side * (top + r) + left + c for r in range(high) for c in range(wide))
        for top in range(0, side, high)
        for left in range(0, side, wide)
    ]
    return (*rows, *columns, *boxes)


# ── solving ──


@cache
def _neighbours(side: int) -> Near:
    """For every cell the groups it is in, and the other cells of these."""
    own = [tuple(g for g in groups(side) if cell in g) for cell in range(side * side)]
    return tuple((gs, tuple({c for g in gs for c in g} - {cell})) for cell, gs in enumerate(own))


def _place(masks: list[int], cell: int, bit: int, near: Near) -> bool:
    """Put a digit into a cell and follow single candidates, in cells and in groups; False at a contradiction."""
    todo = [(cell, masks[cell] & ~bit)]
    if not masks[cell] & bit:
        return False
    while todo:
        at, gone = todo.pop()
        gone &= masks[at]
        if not gone:
            continue
        left = masks[at] = masks[at] & ~gone
        if not left:
            return False
        own, peers = near[at]
        if not left & (left - 1):  # one candidate: no other cell of its groups can have it
            todo += [(peer, left) for peer in peers if masks[peer] & left]
        for group in own:
            if not _only_places(masks, group, gone, todo):
                return False
    return True


def _only_places(masks: list[int], group: Sequence[int], gone: int, todo: list[tuple[int, int]]) -> bool:
    """Digits that have just left a cell: each still needs a place in the group, and takes the last one."""
    while gone:
        digit = gone & -gone
        gone ^= digit
        places = [cell for cell in group if masks[cell] & digit]
        if not places:
            return False
        if len(places) == 1 and masks[places[0]] != digit:
            todo.append((places[0], masks[places[0]] & ~digit))
    return True


def _candidates(board: Sequence[int]) -> list[int] | None:
    side = side_of(board)
    masks = [(1 << side) - 1] * (side * side)
    for cell, digit in enumerate(board):
        if digit and not _place(masks, cell, 1 << (digit - 1), _neighbours(side)):
            return None
    return masks


def _bits(mask: int) -> list[int]:
    return [1 << digit for digit in range(mask.bit_length()) if mask >> digit & 1]


class _Search:
    """Depth first: guess in the cell with the fewest candidates, follow what is forced."""

    def __init__(self, side: int, draw: random.Random | None = None) -> None:
        self.near, self.draw, self.guesses = _neighbours(side), draw, 0

    def run(self, masks: list[int] | None) -> Iterator[Board]:
        if masks is None:
            return
        open_cells = [(mask.bit_count(), cell) for cell, mask in enumerate(masks) if mask & (mask - 1)]
        if not open_cells:
            yield tuple(mask.bit_length() for mask in masks)
            return
        _, cell = min(open_cells) if self.draw is None else min((n, self.draw.random(), c) for n, c in open_cells)[::2]
        digits = _bits(masks[cell])
        if self.draw is not None:
            self.draw.shuffle(digits)
        for bit in digits:
            self.guesses += 1
            further = list(masks)
            if _place(further, cell, bit, self.near):
                yield from self.run(further)


def solutions(board: Sequence[int], most: int = 2) -> list[Board]:
    """Up to ``most`` solutions of a board."""
    return list(islice(_Search(side_of(board)).run(_candidates(board)), most))


def grade(board: Sequence[int]) -> int:
    """How hard a puzzle is: the guesses of the solver until it has the solution; 0: single candidates are enough."""
    search = _Search(side_of(board))
    next(search.run(_candidates(board)), None)
    return search.guesses


def generate(draw: random.Random, side: int = 9, clues: int | None = None, hardest: int | None = None) -> Puzzle:
    """A puzzle with one solution: cells of a random board are emptied in random order while it stays the only one.

    Emptying ends at ``clues`` clues, if so few are reached; no cell is emptied that lifts the grade above ``hardest``.
    """
    whole = (1 << side) - 1
    solution = next(_Search(side, draw).run([whole] * (side * side)))
    board = list(solution)
    order = list(range(side * side))
    draw.shuffle(order)
    left = len(order)
    for cell in order:
        if clues is not None and left <= clues:
            break
        digit, board[cell] = board[cell], 0
        if not _is_forced(board, cell, digit) or (hardest is not None and grade(board) > hardest):
            board[cell] = digit
        else:
            left -= 1
    return Puzzle(tuple(board), solution)


def easier(puzzle: Puzzle, draw: random.Random, most: int) -> Puzzle:
    """The puzzle with clues of its solution added, to a number that is drawn from its own up to ``most``."""
    assert puzzle.solution is not None
    empty = [cell for cell, digit in enumerate(puzzle.clues) if not digit]
    own = len(puzzle.clues) - len(empty)
    added = set(draw.sample(empty, draw.randint(own, max(own, most)) - own))
    pairs = enumerate(zip(puzzle.clues, puzzle.solution, strict=True))
    return Puzzle(tuple(s if cell in added else c for cell, (c, s) in pairs), puzzle.solution)


def _is_forced(board: Sequence[int], cell: int, digit: int) -> bool:
    """Whether every solution has the digit in the cell."""
    masks = _candidates(board)
    assert masks is not None
    search = _Search(side_of(board))
    for bit in _bits(masks[cell] & ~(1 << (digit - 1))):
        further = list(masks)
        if _place(further, cell, bit, search.near) and next(search.run(further), None) is not None:
            return False
    return True


# ── text ──


def parse_line(line: str) -> Puzzle:
    """``53..7…`` or ``530070…`` (0, . or _ is empty), or both boards with a comma between them: quiz,solution."""
    parts = [part.strip() for part in line.strip().split(",")]
    if len(parts) > 2 or not parts[0]:
        raise ValueError(f"a puzzle is one board, or quiz,solution; not {len(parts)} fields: {_short(line)}")
    clues, *rest = (_board(part) for part in parts)
    for group in groups(side_of(clues)):
        found = [clues[cell] for cell in group if clues[cell]]
        if twice := [digit for digit in found if found.count(digit) > 1]:
            raise ValueError(f"the clue {twice[0]} stands twice in a row, column or box: {_short(line)}")
    if not rest:
        return Puzzle(clues)
    if 0 in rest[0] or len(rest[0]) != len(clues) or any(c not in (0, s) for c, s in zip(clues, rest[0], strict=True)):
        raise ValueError(f"the second board is no solution of the first: {_short(line)}")
    return Puzzle(clues, rest[0])


def _board(text: str) -> Board:
    try:
        board = tuple(0 if sign in "._" else int(sign) for sign in text)
    except ValueError:
        raise ValueError(f"a board has digits, and 0, . or _ for an empty cell: {_short(text)}") from None
    side = side_of(board)
    if max(board) > side:
        raise ValueError(f"a board of {side}×{side} has digits up to {side}: {_short(text)}")
    return board


def _short(text: str) -> str:
    return repr(text if len(text) <= 30 else f"{text[:30]}…")


def format_board(board: Sequence[int]) -> str:
    """The cells on one line, . for an empty one."""
    return "".join(str(digit) if digit else "." for digit in board)
