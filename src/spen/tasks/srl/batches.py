"""y ∈ Δ_A^{n×m}: sentences of like size padded together, invalid arcs masked, arguments that overlap in conflict.

The order of batches is a function of (seed, epoch) alone, so that a run resumed at an epoch sees what it would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from spen.tasks.srl.encoding import Encoded, decode
from spen.tasks.srl.features import SLOTS, WORD_SLOTS
from spen.tasks.srl.sentences import Props, Sentence

__all__ = ["Batches", "SrlBatch", "collate", "decode_batches"]


class SrlBatch(NamedTuple):
    """B sentences of at most L tokens, n predicates and m arguments; every tensor has the batch first."""

    words: Tensor  # (B, L) word vocabulary, 0 = padding
    tags: Tensor  # (B, L)
    upos: Tensor  # (B, L)
    deprels: Tensor  # (B, L)
    heads: Tensor  # (B, L) token index, −1 at the root and in padding
    token_mask: Tensor  # (B, L) bool
    predicates: Tensor  # (B, n) token index
    predicate_mask: Tensor  # (B, n) bool
    spans: Tensor  # (B, m, 2) start and end of each argument, half-open
    argument_heads: Tensor  # (B, m) token index
    argument_mask: Tensor  # (B, m) bool
    arc_features: Tensor  # (B, n, m, SLOTS) int32, rows of the feature table, 0 = none
    arc_words: Tensor  # (B, n, m, WORD_SLOTS) int32, word vocabulary, 0 = none
    mask: Tensor  # (B, n, m) bool: arcs that may carry a role
    gold: Tensor  # (B, n, m) role index, 0 = the empty label, which every invalid arc has
    conflicts: Tensor  # (B, m, m) bool: the two spans overlap; symmetric, false on the diagonal
    sentence: Tensor  # (B,) place of the sentence in the corpus

    def one_hot(self, roles: int) -> Tensor:  # (B, n, m, roles)
        """Gold as points of the simplex."""
        return F.one_hot(self.gold, roles).to(torch.get_default_dtype())

    def to(self, device: torch.device | str) -> SrlBatch:
        """The same batch elsewhere."""
        return SrlBatch(*(tensor.to(device, non_blocking=True) for tensor in self))

    def select(self, rows: Tensor) -> SrlBatch:
        """Some of the sentences, by index or by boolean mask."""
        return SrlBatch(*(tensor[rows] for tensor in self))


def collate(encoded: Encoded, sentences: NDArray[np.int64]) -> SrlBatch:
    """The sentences padded to the largest of them; n, m ≥ 1 even where there is nothing to pad."""
    size = len(sentences)
    lengths, counts, widths = (
        np.diff(offsets)[sentences]
        for offsets in (encoded.token_offsets, encoded.predicate_offsets, encoded.argument_offsets)
    )
    L, n, m = (max(1, int(x.max(initial=0))) for x in (lengths, counts, widths))
    tokens = {name: np.zeros((size, L), np.int64) for name in ("words", "tags", "upos", "deprels")}
    heads = np.full((size, L), -1, np.int64)
    predicates = np.zeros((size, n), np.int64)
    spans = np.zeros((size, m, 3), np.int64)
    features = np.zeros((size, n, m, SLOTS), np.int32)
    words = np.zeros((size, n, m, len(WORD_SLOTS)), np.int32)
    mask, gold = np.zeros((size, n, m), bool), np.zeros((size, n, m), np.int64)
    for row, i in enumerate(sentences.tolist()):
        at = slice(encoded.token_offsets[i], encoded.token_offsets[i + 1])
        for name, padded in tokens.items():
            padded[row, : lengths[row]] = getattr(encoded, name)[at]
        heads[row, : lengths[row]] = encoded.heads[at]
        at = slice(encoded.predicate_offsets[i], encoded.predicate_offsets[i + 1])
        predicates[row, : counts[row]] = encoded.predicates[at]
        at = slice(encoded.argument_offsets[i], encoded.argument_offsets[i + 1])
        spans[row, : widths[row]] = encoded.arguments[at]
        at = slice(encoded.arc_offsets[i], encoded.arc_offsets[i + 1])
        p, a, role = encoded.arcs[at].T
        mask[row, p, a], gold[row, p, a] = True, role
        features[row, p, a], words[row, p, a] = encoded.arc_features[at], encoded.arc_words[at]
    start, end = spans[..., 0], spans[..., 1]
    # Padding has start = end = 0 and so overlaps nothing.
    conflicts = (start[:, :, None] < end[:, None, :]) & (start[:, None, :] < end[:, :, None])
    conflicts[:, np.arange(m), np.arange(m)] = False
    as_tensor = torch.from_numpy
    return SrlBatch(
        **{name: as_tensor(padded) for name, padded in tokens.items()},
        heads=as_tensor(heads),
        token_mask=as_tensor(np.arange(L) < lengths[:, None]),
        predicates=as_tensor(predicates),
        predicate_mask=as_tensor(np.arange(n) < counts[:, None]),
        spans=as_tensor(spans[..., :2].copy()),
        argument_heads=as_tensor(spans[..., 2].copy()),
        argument_mask=as_tensor(np.arange(m) < widths[:, None]),
        arc_features=as_tensor(features),
        arc_words=as_tensor(words),
        mask=as_tensor(mask),
        gold=as_tensor(gold),
        conflicts=as_tensor(conflicts),
        sentence=as_tensor(np.asarray(sentences, np.int64).copy()),
    )


class Batches:
    """Batches of sentences that have a predicate; `skipped` says how many have none and so nothing to predict."""

    def __init__(
        self,
        encoded: Encoded,
        *,
        size: int = 64,
        cells: int | None = 16_384,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """At most `size` sentences and `cells` padded arcs (B · n · m) a batch; a lone sentence may exceed `cells`."""
        if size < 1 or (cells is not None and cells < 1):
            raise ValueError(f"a batch needs room for a sentence: size {size} and cells {cells} must be positive")
        self.encoded, self.size, self.cells, self.shuffle, self.seed = encoded, size, cells, shuffle, seed
        self._n, self._m = np.diff(encoded.predicate_offsets), np.diff(encoded.argument_offsets)
        self._usable = np.flatnonzero(self._n > 0)

    @property
    def sentences(self) -> int:
        return len(self._usable)

    @property
    def skipped(self) -> int:
        return len(self.encoded) - len(self._usable)

    def plan(self, epoch: int = 0) -> list[NDArray[np.int64]]:
        """Which sentences each batch of the epoch holds."""
        generator = np.random.default_rng([self.seed, epoch])
        n, m = self._n[self._usable].astype(float), self._m[self._usable].astype(float)
        if self.shuffle:
            # Noise of a few cells mixes the buckets between epochs and costs little padding.
            n, m = n + generator.uniform(0, 1, n.shape), m + generator.uniform(0, 3, m.shape)
        order = self._usable[np.lexsort((n, np.round(m / 4), np.floor(n)))]
        batches: list[NDArray[np.int64]] = []
        start, widest, most = 0, 1, 1
        for k, i in enumerate(order.tolist()):
            widest, most = max(widest, int(self._n[i])), max(most, int(self._m[i]))
            full = k - start == self.size
            over = self.cells is not None and k > start and (k - start + 1) * widest * most > self.cells
            if full or over:
                batches.append(order[start:k])
                start, widest, most = k, max(1, int(self._n[i])), max(1, int(self._m[i]))
        if len(order):
            batches.append(order[start:])
        if self.shuffle:
            batches = [batches[k] for k in generator.permutation(len(batches))]
        return batches

    def epoch(self, epoch: int = 0) -> Iterator[SrlBatch]:
        """The batches of an epoch, in its order."""
        for sentences in self.plan(epoch):
            yield collate(self.encoded, sentences)

    def __iter__(self) -> Iterator[SrlBatch]:
        return self.epoch(0)


def decode_batches(
    encoded: Encoded,
    sentences: Sequence[Sentence],
    predictions: Iterable[tuple[Tensor, Tensor]],  # (B,) places in the corpus and (B, n, m) role indices
    roles: Sequence[str],
) -> list[Props]:
    """Role indices of every batch → propositions of the whole corpus in its order, as the metric wants them.

    A sentence that no batch had keeps its predicates and gets no argument.
    """
    labels: dict[int, NDArray[np.int64]] = {}
    for places, indices in predictions:
        labels.update(zip(places.tolist(), indices.cpu().numpy(), strict=True))
    nothing = np.zeros(
        (int(np.diff(encoded.predicate_offsets).max(initial=0)), int(np.diff(encoded.argument_offsets).max(initial=0))),
        np.int64,
    )
    return [
        decode(encoded, i, labels.get(i, nothing), roles, [p.sense for p in sentence.propositions])
        for i, sentence in enumerate(sentences)
    ]
