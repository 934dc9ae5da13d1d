"""Brackets, trees and text: what is written is read, and what is wrong is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.sentences import (
    Argument,
    BadCorpus,
    Proposition,
    Props,
    Sentence,
    check_tree,
    column_of,
    find_roles,
    is_core,
    parse_column,
    read_text,
    write_text,
)

from .strategies import heads, pieces


@given(st.data())
def test_brackets_round_trip(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    drawn = data.draw(pieces(length))
    assert parse_column(column_of(drawn, length), "f", range(length)) == tuple(sorted(drawn))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["(A0*", "*"], "f:7: (A0* is never closed in its sentence"),
        (["*", "*)"], "f:8: '*)' closes an argument that was never opened"),
        (["(A0*", "(A1*)"], "f:8: '(A1*)' opens an argument while A0 is still open"),
        (["(A0(A1*)", "*)"], "f:7: '(A0(A1*)' opens two arguments at once, which may not nest"),
        (["A0", "*"], "f:7: 'A0' is no bracket notation such as (A0*, *, *) or (A0*)"),
        (["(*)", "*"], "f:7: '(*)' is no bracket notation such as (A0*, *, *) or (A0*)"),
        (["(A0*))", "*"], "f:7: '(A0*))' is no bracket notation such as (A0*, *, *) or (A0*)"),
    ],
)
def test_bad_brackets_are_named(cells: list[str], message: str) -> None:
    with pytest.raises(BadCorpus) as error:
        parse_column(cells, "f", range(7, 99))
    assert str(error.value) == message


def test_overlapping_pieces_cannot_be_written() -> None:
    with pytest.raises(ValueError, match=r"A1 \[1, 3\) overlaps its neighbour or leaves the sentence"):
        column_of([Argument(0, 2, "A0"), Argument(1, 3, "A1")], 4)


@given(st.integers(1, 12).flatmap(heads))
def test_trees_are_accepted(tree: tuple[int, ...]) -> None:
    check_tree(tree, "f", range(len(tree)))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ((-1, -1, 0), "f:11: the tree has 2 roots, and it needs exactly one"),
        ((1, 0), "f:10: the tree has 0 roots, and it needs exactly one"),
        ((-1, 2, 1), "f:11: token 2 never reaches the root: the tree has a cycle"),
        ((-1, 1), "f:11: token 2 never reaches the root: the tree has a cycle"),
        ((-1, 5), "f:11: head 6 lies outside the sentence of 2 tokens"),
    ],
)
def test_bad_trees_are_named(tree: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadCorpus) as error:
        check_tree(tree, "f", range(10, 10 + len(tree)))
    assert str(error.value) == message


def test_text_is_read_gzipped_or_not_and_written_reproducibly(tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.gz"):
        write_text(tmp_path / name, "é\nb\n")
        assert read_text(tmp_path / name) == "é\nb\n"
    first = (tmp_path / "a.txt.gz").read_bytes()
    write_text(tmp_path / "b.gz", "é\nb\n")
    assert (tmp_path / "b.gz").read_bytes() == first
    (tmp_path / "no-suffix").write_bytes(first)
    assert read_text(tmp_path / "no-suffix") == "é\nb\n"
    (tmp_path / "dos").write_bytes("\ufeffa\r\nb".encode())
    assert read_text(tmp_path / "dos") == "a\nb"


def test_unreadable_text_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"ok\nok \xff\n")
    with pytest.raises(BadCorpus) as error:
        read_text(bad)
    assert str(error.value) == f"{bad}:2: byte 0xff is not UTF-8; convert the file to UTF-8"
    bad.write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(BadCorpus, match="the gzipped file is damaged or cut short; fetch it again"):
        read_text(bad)
    with pytest.raises(BadCorpus, match="the file cannot be read"):
        read_text(tmp_path / "absent")


def test_columns_of_a_sentence_have_one_length() -> None:
    with pytest.raises(ValueError, match="sentence 'x-1' has 2 words but 1 lemmas"):
        Sentence(words=("a", "b"), lemmas=("a",), sent_id="x-1")


def test_roles_and_small_properties() -> None:
    proposition = Proposition(1, "go", (Argument(0, 1, "A0"), Argument(1, 3, "V"), Argument(3, 4, "C-A0")))
    sentence = Sentence(words=("a", "b", "c", "d"), propositions=(proposition,), sent_id="email-3")
    assert sentence.genre == "email"
    assert len(sentence) == 4
    assert find_roles([sentence, Props(3)]) == ("O", "A0", "C-A0")
    assert [is_core(r) for r in ("A0", "AA", "ARG1", "AM-TMP", "R-A0", "C-A0", "O")] == [True] * 3 + [False] * 4
