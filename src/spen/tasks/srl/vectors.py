"""Pretrained word vectors: word2vec text and binary, GloVe text, and a vocabulary beside an npz of `vectors`.

All become a WordVectors: lower-cased words, each once (the first, the most frequent, wins), and a float32 matrix.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.srl.sentences import BadCorpus, read_text

__all__ = ["WordVectors", "read_glove", "read_npz", "read_vectors", "read_word2vec_binary", "read_word2vec_text"]

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
    """Vectors of any of these formats, told apart by the file itself; an npz has its words in vocab.txt.gz by it."""
    path = Path(path)
    if path.is_dir():
        archives = sorted(path.glob("*.npz"))
        if len(archives) != 1:
            raise BadCorpus(path, 0, f"the folder has {len(archives)} npz files, and it needs exactly one")
        path = archives[0]
    if path.suffix == ".npz":
        return read_npz(path, path.with_name("vocab.txt.gz"))
    data = _bytes(path)
    head, _, rest = data.partition(b"\n")
    header = head.split()
    if len(header) == 2 and all(part.isdigit() for part in header):
        # A text row of d numbers is "word x₁ … x_d\n"; anything else after the header is the binary format.
        numbers = rest.partition(b"\n")[0].rstrip().split(b" ")
        text = len(numbers) == int(header[1]) + 1 and _all_floats(numbers[1:])
        return read_word2vec_text(path) if text else read_word2vec_binary(path)
    return read_glove(path)


def read_glove(path: str | Path) -> WordVectors:
    """`word x₁ … x_d` on every line, no header; the word may itself hold blanks, as a few of GloVe's do."""
    lines = read_text(path).rstrip("\n").split("\n")
    return _collect(_text_rows(lines, path, 1, None))


def read_word2vec_text(path: str | Path) -> WordVectors:
    """A header `count dimensions`, then `word x₁ … x_d` on every line."""
    lines = read_text(path).rstrip("\n").split("\n")
    count, dimensions = _header(lines[0], path)
    if len(lines) - 1 != count:
        raise BadCorpus(path, 1, f"the header promises {count} vectors, but {len(lines) - 1} lines follow")
    return _collect(_text_rows(lines[1:], path, 2, dimensions))


def read_word2vec_binary(path: str | Path) -> WordVectors:
    """A header `count dimensions`, then each word, a blank and its vector in little-endian float32."""
    data = _bytes(Path(path))
    end = data.find(b"\n")
    count, dimensions = _header(data[: max(end, 0)].decode("utf-8", "replace"), path)

    def rows() -> Iterator[tuple[str, Matrix]]:
        at = end + 1
        for number in range(1, count + 1):
            blank = data.find(b" ", at)
            stop = blank + 1 + 4 * dimensions
            if blank < 0 or stop > len(data):
                raise BadCorpus(path, 0, f"the file ends inside vector {number} of {count}")
            word = data[at:blank].lstrip(b"\n").decode("utf-8", "replace")
            yield word, np.frombuffer(data, dtype="<f4", count=dimensions, offset=blank + 1).astype(np.float32)
            at = stop

    return _collect(rows())


def read_npz(path: str | Path, vocabulary: str | Path) -> WordVectors:
    """An npz whose `vectors` has a row for each line of the vocabulary."""
    words = read_text(vocabulary).rstrip("\n").split("\n")
    with np.load(path, allow_pickle=False) as archive:
        if "vectors" not in archive:
            raise BadCorpus(path, 0, f"no array `vectors` in it, only {', '.join(archive.files) or 'nothing'}")
        matrix = archive["vectors"].astype(np.float32)
    if len(words) != len(matrix):
        raise BadCorpus(vocabulary, len(words), f"{len(words)} words, but {Path(path).name} has {len(matrix)} vectors")
    return _collect(zip(words, matrix, strict=True))


def _collect(rows: Iterator[tuple[str, Matrix]] | zip[tuple[str, Matrix]]) -> WordVectors:
    first: dict[str, Matrix] = {}
    for word, vector in rows:
        first.setdefault(word.lower(), vector)
    matrix = np.stack(list(first.values())) if first else np.zeros((0, 0), np.float32)
    return WordVectors(tuple(first), matrix)


def _text_rows(lines: list[str], path: str | Path, line: int, dimensions: int | None) -> Iterator[tuple[str, Matrix]]:
    for number, text in enumerate(lines, line):
        cells = text.rstrip().split(" ")
        width = dimensions if dimensions is not None else len(cells) - 1
        dimensions = width
        try:
            if width < 1 or len(cells) <= width:
                raise ValueError
            yield " ".join(cells[:-width]), np.array([float(cell) for cell in cells[-width:]], dtype=np.float32)
        except ValueError as error:
            raise BadCorpus(path, number, f"a word and {width} numbers were expected") from error


def _header(text: str, path: str | Path) -> tuple[int, int]:
    parts = text.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise BadCorpus(path, 1, "word2vec begins with a line `count dimensions`; a file without one is GloVe's")
    return int(parts[0]), int(parts[1])


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadCorpus(path, 0, f"the file cannot be read ({error.strerror}); check the path") from error
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _all_floats(cells: list[bytes]) -> bool:
    try:
        return all(np.isfinite(float(cell)) for cell in cells)
    except ValueError:
        return False
