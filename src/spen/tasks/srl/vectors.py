"""Pretrained word vectors: word2vec text and binary, GloVe text, and a vocabulary beside an npz of `vectors`.

All become a WordVectors: lower-cased words, each once (the first, the most frequent, wins), and a float32 matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.srl.sentences import BadCorpus, decode_text, read_bytes, read_text

__all__ = ["WordVectors", "read_vectors"]

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """Row i of `matrix` is the vector of `words[i]`."""

    words: tuple[str, ...]
    matrix: Matrix  # (words, dimensions)

    def __post_init__(self) -> None:
        if len(self.words) != len(self.matrix):
            raise ValueError(f"{len(self.words)} words but {len(self.matrix)} vectors; there must be one each")

    @property
    def dimensions(self) -> int:
        return int(self.matrix.shape[1])

    def table(
        self,
        vocabulary: Sequence[str],
        *,
        scale: float = 0.1,
        seed: int = 0,
    ) -> tuple[Tensor, Tensor]:  # (vocabulary, dimensions), (vocabulary,)
        """A start for an embedding table, and which rows come from here; the others are N(0, scale²), row 0 is 0."""
        index = {word: i for i, word in enumerate(self.words)}
        rows = np.random.default_rng(seed).normal(0, scale, (len(vocabulary), self.dimensions)).astype(np.float32)
        found = np.zeros(len(vocabulary), dtype=bool)
        for i, word in enumerate(vocabulary):
            row = index.get(word.lower())
            if row is not None:
                rows[i], found[i] = self.matrix[row], True
        if len(rows) and not found[0]:
            rows[0] = 0
        return torch.from_numpy(rows), torch.from_numpy(found)


def read_vectors(path: str | Path) -> WordVectors:
    """Vectors of any of these formats, recognised by the file itself; an npz has its words in vocab.txt.gz by it.

    Text has `word x₁ … x_d` on every line, where the word may hold blanks, as a few of GloVe's do. word2vec has a line
    `count dimensions` before that, and its binary format each word, a blank and the vector in little-endian float32.
    """
    path = Path(path)
    if path.is_dir():
        archives = sorted(path.glob("*.npz"))
        if len(archives) != 1:
            raise BadCorpus(path, 0, f"the folder has {len(archives)} npz files, and it needs exactly one")
        path = archives[0]
    if path.suffix == ".npz":
        return _collect(_npz_rows(path, path.with_name("vocab.txt.gz")))
    data = read_bytes(path)
    head, _, rest = data.partition(b"\n")
    header = head.split()
    if len(header) != 2 or not all(part.isdigit() for part in header):
        return _collect(_text_rows(data, path, 1, None))
    count, dimensions = int(header[0]), int(header[1])
    # A text row of d numbers is "word x₁ … x_d\n"; anything else after the header is the binary format.
    if not _is_row(rest.partition(b"\n")[0].rstrip().split(b" "), dimensions):
        return _collect(_binary_rows(rest, path, count, dimensions))
    lines = rest.rstrip(b"\n").count(b"\n") + 1
    if lines != count:
        raise BadCorpus(path, 1, f"the header promises {count} vectors, but {lines} lines follow")
    return _collect(_text_rows(rest, path, 2, dimensions))


def _text_rows(data: bytes, path: Path, line: int, dimensions: int | None) -> Iterator[tuple[str, Matrix]]:
    for number, text in enumerate(decode_text(data, path).rstrip("\n").split("\n"), line):
        cells = text.rstrip().split(" ")
        dimensions = len(cells) - 1 if dimensions is None else dimensions
        try:
            if dimensions < 1 or len(cells) <= dimensions:
                raise ValueError
            yield " ".join(cells[:-dimensions]), np.array([float(cell) for cell in cells[-dimensions:]], np.float32)
        except ValueError as error:
            raise BadCorpus(path, number, f"a word and {dimensions} numbers were expected") from error


def _binary_rows(data: bytes, path: Path, count: int, dimensions: int) -> Iterator[tuple[str, Matrix]]:
    at = 0
    for number in range(1, count + 1):
        blank = data.find(b" ", at)
        stop = blank + 1 + 4 * dimensions
        if blank < 0 or stop > len(data):
            raise BadCorpus(path, 0, f"the file ends inside vector {number} of {count}")
        word = data[at:blank].lstrip(b"\n").decode("utf-8", "replace")
        yield word, np.frombuffer(data, dtype="<f4", count=dimensions, offset=blank + 1).astype(np.float32)
        at = stop


def _npz_rows(path: Path, vocabulary: Path) -> Iterable[tuple[str, Matrix]]:
    words = read_text(vocabulary).rstrip("\n").split("\n")
    with np.load(path, allow_pickle=False) as archive:
        if "vectors" not in archive:
            raise BadCorpus(path, 0, f"no array `vectors` in it, only {', '.join(archive.files) or 'nothing'}")
        matrix = archive["vectors"].astype(np.float32)
    if len(words) != len(matrix):
        raise BadCorpus(vocabulary, len(words), f"{len(words)} words, but {path.name} has {len(matrix)} vectors")
    return zip(words, matrix, strict=True)


def _collect(rows: Iterable[tuple[str, Matrix]]) -> WordVectors:
    first: dict[str, Matrix] = {}
    for word, vector in rows:
        first.setdefault(word.lower(), vector)
    matrix = np.stack(list(first.values())) if first else np.zeros((0, 0), np.float32)
    return WordVectors(tuple(first), matrix)


def _is_row(cells: list[bytes], dimensions: int) -> bool:
    try:
        return len(cells) == dimensions + 1 and all(np.isfinite(float(cell)) for cell in cells[1:])
    except ValueError:
        return False
