"""Word vectors in every format are the same words and numbers."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.sentences import BadCorpus, write_text
from spen.tasks.srl.vectors import WordVectors, read_vectors

WORDS = ("the", "élan", "3", "x-y")
MATRIX = np.array([[1, -2.5], [0.25, 3], [0, 1e-3], [7, 8]], dtype=np.float32)


def text_rows(words: tuple[str, ...], matrix: np.ndarray) -> str:
    return "".join(f"{w} {' '.join(repr(float(x)) for x in row)}\n" for w, row in zip(words, matrix, strict=True))


def write_all(folder: Path, words: tuple[str, ...], matrix: np.ndarray) -> list[Path]:
    header = f"{len(words)} {matrix.shape[1]}\n"
    write_text(folder / "glove.txt", text_rows(words, matrix))
    write_text(folder / "w2v.txt.gz", header + text_rows(words, matrix))
    rows = [w.encode() + b" " + row.astype("<f4").tobytes() for w, row in zip(words, matrix, strict=True)]
    (folder / "w2v.bin").write_bytes(header.encode() + b"".join(rows))
    (folder / "w2v-lines.bin.gz").write_bytes(gzip.compress(header.encode() + b"".join(r + b"\n" for r in rows)))
    (folder / "npz").mkdir(exist_ok=True)
    write_text(folder / "npz" / "vocab.txt.gz", "\n".join(words) + "\n")
    np.savez(folder / "npz" / "v.npz", vectors=matrix.astype(np.float64))
    return [folder / name for name in ("glove.txt", "w2v.txt.gz", "w2v.bin", "w2v-lines.bin.gz", "npz", "npz/v.npz")]


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    for path in write_all(tmp_path, WORDS, MATRIX):
        found = read_vectors(path)
        assert found.words == WORDS, path
        assert np.array_equal(found.matrix, MATRIX), path
        assert (found.dimensions, found.matrix.dtype) == (2, np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vectors")


@given(
    st.sets(st.text("abcxyz", min_size=1, max_size=4), min_size=1, max_size=5).map(sorted).map(tuple),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_random_vectors_round_trip(folder: Path, words: tuple[str, ...], width: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(len(words), width)).astype(np.float32)
    for path in write_all(folder, words, matrix):
        found = read_vectors(path)
        assert found.words == words
        assert np.array_equal(found.matrix, matrix)


def test_the_first_spelling_wins_and_blanks_stay_in_words(tmp_path: Path) -> None:
    write_text(tmp_path / "g.txt", "The 1 2\nthe 3 4\n. . 5 6\n")
    found = read_vectors(tmp_path / "g.txt")
    assert found.words == ("the", ". .")
    assert found.matrix.tolist() == [[1, 2], [5, 6]]


def test_the_table_of_a_vocabulary() -> None:
    table, found = WordVectors(WORDS, MATRIX).table(("<pad>", "<unk>", "X-Y"), seed=1)
    assert found.tolist() == [False, False, True]
    assert table[0].tolist() == [0, 0]
    assert table[2].tolist() == [7, 8]
    other, _ = WordVectors(WORDS, MATRIX).table(("<pad>", "<unk>", "X-Y"), seed=2)
    wide, _ = WordVectors(WORDS, MATRIX).table(("<pad>", "<unk>", "X-Y"), seed=1, scale=1.0)
    assert not torch.equal(other[1], table[1])
    assert torch.allclose(wide[1], table[1] * 10)


def test_malformed_vectors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "v"
    for text, message in [
        ("a 1 2\nb 1\n", f"{path}:2: a word and 2 numbers were expected"),
        ("a 1 x\n", f"{path}:1: a word and 2 numbers were expected"),
        ("3 2\na 1 2\n", f"{path}:1: the header promises 3 vectors, but 1 lines follow"),
        ("1 3\na 1 2\n", f"{path}:0: the file ends inside vector 1 of 1"),
        ("2 2\na 12345678b 1", f"{path}:0: the file ends inside vector 2 of 2"),
    ]:
        path.write_text(text)
        with pytest.raises(BadCorpus) as error:
            read_vectors(path)
        assert str(error.value) == message
    with pytest.raises(BadCorpus, match="the folder has 0 npz files, and it needs exactly one"):
        read_vectors(tmp_path)
    np.savez(tmp_path / "w.npz", other=MATRIX)
    write_text(tmp_path / "vocab.txt.gz", "a\n")
    with pytest.raises(BadCorpus, match="no array `vectors` in it, only other"):
        read_vectors(tmp_path / "w.npz")
    np.savez(tmp_path / "w.npz", vectors=MATRIX)
    with pytest.raises(BadCorpus, match=r"vocab.txt.gz:1: 1 words, but w.npz has 4 vectors"):
        read_vectors(tmp_path)
    with pytest.raises(BadCorpus, match="the file cannot be read"):
        read_vectors(tmp_path / "absent")
    with pytest.raises(ValueError, match="1 words but 4 vectors; there must be one each"):
        WordVectors(("a",), MATRIX)
