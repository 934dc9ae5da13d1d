"""Word vectors of a folder, and the embedding table that starts from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spen.tasks.srl.sentences import BadCorpus, write_text
from spen.tasks.srl.vectors import WordVectors, read_vectors

WORDS = ("the", "élan", "3", "x-y")
MATRIX = np.array([[1, -2.5], [0.25, 3], [0, 1e-3], [7, 8]], dtype=np.float32)


def write_vectors(folder: Path, words: tuple[str, ...], **arrays: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    write_text(folder / "vocab.txt.gz", "\n".join(words) + "\n")
    np.savez(folder / "v.npz", **arrays)


def test_the_first_spelling_of_a_word_counts(tmp_path: Path) -> None:
    write_vectors(tmp_path, ("The", "élan", "the", ". ."), vectors=MATRIX.astype(np.float64))
    found = read_vectors(tmp_path)
    assert found.words == ("the", "élan", ". .")
    assert found.matrix.dtype == np.float32
    assert np.array_equal(found.matrix, MATRIX[[0, 1, 3]])


def test_the_table_of_a_vocabulary() -> None:
    vectors, vocabulary = WordVectors(WORDS, MATRIX), ("<pad>", "<unk>", "X-Y")
    table = vectors.table(vocabulary, seed=1)
    assert table[0].tolist() == [0, 0]
    assert table[2].tolist() == [7, 8]
    assert not torch.equal(vectors.table(vocabulary, seed=2)[1], table[1])
    assert torch.allclose(vectors.table(vocabulary, seed=1, scale=1.0)[1], table[1] * 10)


def test_malformed_vectors_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadCorpus, match="the folder has 0 npz files, and it needs exactly one"):
        read_vectors(tmp_path)
    write_vectors(tmp_path, ("a",), other=MATRIX)
    with pytest.raises(BadCorpus, match="no array `vectors` in it, only other"):
        read_vectors(tmp_path)
    write_vectors(tmp_path, ("a",), vectors=MATRIX)
    with pytest.raises(BadCorpus, match=r"vocab.txt.gz:1: 1 words, but v.npz has 4 vectors"):
        read_vectors(tmp_path)
    (tmp_path / "vocab.txt.gz").unlink()
    with pytest.raises(BadCorpus, match="the file cannot be read"):
        read_vectors(tmp_path)
