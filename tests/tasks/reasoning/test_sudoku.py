"""Boards: the solver against brute force, puzzles with one solution, grades, text."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spen.tasks.reasoning.data import read_puzzles
from spen.tasks.reasoning.sudoku import Puzzle, easier, format_board, generate, grade, groups, parse_line, solutions

HARD = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."  # needs guesses


def every_board() -> list[tuple[int, ...]]:
    """All solved boards of 4×4, from permutations of its rows."""
    rows = list(itertools.permutations(range(1, 5)))
    found = []
    for a, b in itertools.product(rows, rows):
        if {*a[:2], *b[:2]} != {1, 2, 3, 4}:
            continue
        for c, d in itertools.product(rows, rows):
            board = (*a, *b, *c, *d)
            if all(len({board[i] for i in g}) == 4 for g in groups(4)):
                found.append(board)
    return found


BOARDS = every_board()


def brute_force(clues: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {board for board in BOARDS if all(c in (0, b) for c, b in zip(clues, board, strict=True))}


def test_there_are_288_boards_of_four() -> None:
    assert len(BOARDS) == 288
    assert {*solutions((0,) * 16, most=1000)} == {*BOARDS}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 287), st.sets(st.integers(0, 15), min_size=4, max_size=12))
def test_the_solver_agrees_with_brute_force(number: int, empty: set[int]) -> None:
    clues = tuple(0 if i in empty else d for i, d in enumerate(BOARDS[number]))
    assert {*solutions(clues, most=1000)} == brute_force(clues)


@pytest.mark.parametrize("seed", range(12))
def test_a_puzzle_of_four_has_one_solution_and_no_clue_too_many(seed: int) -> None:
    puzzle = generate(random.Random(seed), 4)
    assert brute_force(puzzle.clues) == {puzzle.solution}
    for cell, digit in enumerate(puzzle.clues):
        if digit:
            assert len(brute_force((*puzzle.clues[:cell], 0, *puzzle.clues[cell + 1 :]))) > 1


@pytest.mark.parametrize("side", [6, 8, 9])
def test_larger_puzzles_have_one_solution(side: int) -> None:
    puzzle = generate(random.Random(1), side, clues=side * side // 2)
    assert puzzle.side == side
    assert sum(map(bool, puzzle.clues)) == side * side // 2
    assert solutions(puzzle.clues) == [puzzle.solution]
    assert puzzle.solution is not None
    assert all({puzzle.solution[i] for i in g} == set(range(1, side + 1)) for g in groups(side))


def test_the_same_seed_makes_the_same_puzzle() -> None:
    assert generate(random.Random(3), 4) == generate(random.Random(3), 4)
    assert generate(random.Random(3), 4) != generate(random.Random(4), 4)


def test_grades() -> None:
    assert grade(generate(random.Random(0), 9, clues=45).clues) == 0
    assert grade(parse_line(HARD).clues) > 10
    assert len(solutions(parse_line(HARD).clues)) == 1
    easy = generate(random.Random(6), 6, hardest=0)
    assert grade(easy.clues) == 0


def test_a_contradiction_has_no_solution() -> None:
    assert solutions((1, 1, *[0] * 14)) == []
    assert solutions((1, 2, 0, 0, 0, 0, 3, 0, *[0] * 8)) == []  # the first row has no place for its 3


@given(st.integers(0, 287), st.sets(st.integers(0, 15)), st.sampled_from("0._"))
def test_a_board_is_read_as_it_was_written(number: int, empty: set[int], sign: str) -> None:
    solution = BOARDS[number]
    clues = tuple(0 if i in empty else d for i, d in enumerate(solution))
    text = format_board(clues).replace(".", sign)
    assert parse_line(text) == Puzzle(clues)
    assert parse_line(f" {text},{format_board(solution)}\n") == Puzzle(clues, solution)


@settings(max_examples=100)
@given(st.text(max_size=90).filter(lambda text: len(text.strip()) not in (16, 36, 64, 81)))
def test_text_of_another_length_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="board|puzzle") as error:
        parse_line(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("12", "a board has 16, 36, 64, 81 cells, not 2"),
        ("x" * 16, "a board has digits, and 0, . or _ for an empty cell: 'xxxxxxxxxxxxxxxx'"),
        ("5" + "." * 15, "a board of 4×4 has digits up to 4: '5...............'"),
        ("." * 16 + "," + "." * 16, "the second board is no solution of the first: '................,.............…'"),
        ("1..1" + "." * 12, "the clue 1 stands twice in a row, column or box: '1..1............'"),
        ("1,2,3", "a puzzle is one board, or quiz,solution; not 3 fields: '1,2,3'"),
    ],
)
def test_what_is_no_puzzle_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="board|puzzle|clue") as error:
        parse_line(line)
    assert str(error.value) == sentence


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text("quizzes,solutions\n# a remark\n\n1...............\n")
    assert [p.clues[0] for p in read_puzzles(path)] == [1]
    path.write_text("1...............\n", encoding="utf-8-sig")
    assert [p.clues[0] for p in read_puzzles(path)] == [1], "a byte order mark"
    for text, sentence in (
        ("1...............\n12\n", f"{path}, line 2: a board has 16, 36, 64, 81 cells, not 2"),
        ("1...............\n" + "." * 81, f"{path} has boards of several sizes; a model solves one size at a time"),
        ("\n", f"{path} has no puzzle in it"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match="puzzles.csv") as error:
            read_puzzles(path)
        assert str(error.value) == sentence
    for other in (path, path.with_suffix(".xz")):
        other.write_bytes(b"\xb5\xff")
        with pytest.raises(ValueError, match=f"{other.name} is no text file with a puzzle on each line: "):
            read_puzzles(other)


@given(st.integers(0, 1000), st.integers(0, 16))
@settings(max_examples=20, deadline=None)
def test_an_easier_puzzle_adds_clues_of_the_solution(seed: int, most: int) -> None:
    draw = random.Random(seed)
    puzzle = generate(draw, 4)
    easy = easier(puzzle, draw, most)
    count, more = (sum(map(bool, board)) for board in (puzzle.clues, easy.clues))
    assert count <= more <= max(count, most)
    assert all(new == old for new, old in zip(easy.clues, puzzle.clues, strict=True) if old)
    assert solutions(easy.clues) == [puzzle.solution]
