"""Pretrained word vectors: a folder with vocab.txt.gz, a word on every line, and an npz with the array `vectors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.srl.sentences import BadCorpus, read_text


@dataclass(frozen=True)
class WordVectors:
    """Row i of `matrix` is the vector of `words[i]`."""

    words: tuple[str, ...]
    matrix: NDArray[np.float32]  # (words, dimensions)

    def table(self, vocabulary: Sequence[str], *, scale: float = 0.1, seed: int = 0) -> Tensor:  # (vocabulary, D)
        """Initial rows of an embedding table; words without a vector are drawn from N(0, scale²), row 0 is padding."""
        index = {word: i for i, word in enumerate(self.words)}
        shape = len(vocabulary), self.matrix.shape[1]
        rows = np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)
        rows[:1] = 0
        for i, word in enumerate(vocabulary):
            if (row := index.get(word.lower())) is not None:
                rows[i] = self.matrix[row]
        return torch.from_numpy(rows)


def read_vectors(folder: Path) -> WordVectors:
    """The vectors of a folder; words are lower-cased, and of equal words the first, the most frequent, counts."""
    archives = sorted(folder.glob("*.npz"))
    if len(archives) != 1:
        raise BadCorpus(folder, 0, f"the folder has {len(archives)} npz files, and it needs exactly one")
    path, vocabulary = archives[0], folder / "vocab.txt.gz"
    words = read_text(vocabulary).rstrip("\n").split("\n")
    with np.load(path, allow_pickle=False) as archive:
        if "vectors" not in archive:
            raise BadCorpus(path, 0, f"no array `vectors` in it, only {', '.join(archive.files) or 'nothing'}")
        matrix = archive["vectors"].astype(np.float32)
    if len(words) != len(matrix):
        raise BadCorpus(vocabulary, len(words), f"{len(words)} words, but {path.name} has {len(matrix)} vectors")
    first: dict[str, int] = {}
    for i, word in enumerate(words):
        first.setdefault(word.lower(), i)
    return WordVectors(tuple(first), matrix[list(first.values())])
