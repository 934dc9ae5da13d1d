"""y ∈ Δ_A^{n×K}: the arcs of a sentence by predicate, each predicate with its own K candidates.

The paper optimises over the complete bipartite graph Δ_A^{n×m}, of which a quarter are valid arcs. Here a predicate's
row holds only its candidates, so that pairs of arcs, which the constraints need, are K² and not m². A corpus is stored
on the device as flat tensors, which a batch indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.encoding import Encoded, encode
from spen.tasks.srl.features import FeatureSpace
from spen.tasks.srl.sentences import Argument, Proposition, Props, Sentence


class ArcBatch(NamedTuple):
    """x: B sentences of at most L tokens, n predicates and K candidates a predicate; every tensor has B first."""

    words: Tensor  # (B, L) word vocabulary, 0 = padding
    tags: Tensor  # (B, L)
    deprels: Tensor  # (B, L)
    heads: Tensor  # (B, L) token index, −1 at the root and in padding
    token_mask: Tensor  # (B, L) bool
    predicates: Tensor  # (B, n) token index
    predicate_mask: Tensor  # (B, n) bool
    features: Tensor  # (B, n, K, SLOTS) int32, rows of the feature table, 0 = none
    arc_words: Tensor  # (B, n, K, WORD_SLOTS) int32, word vocabulary, 0 = none
    spans: Tensor  # (B, n, K, 2) start and end of the argument, half-open
    argument_heads: Tensor  # (B, n, K) token index
    mask: Tensor  # (B, n, K) bool: arcs that may carry a role
    conflicts: Tensor  # (B, n, K, K) bool: the two candidates of the predicate overlap


class ArcTarget(NamedTuple):
    """y*, and what rounding and scoring a prediction need."""

    gold: Tensor  # (B, n, K) role index, 0 = the empty label, which every invalid arc has
    mask: Tensor  # (B, n, K) bool
    spans: Tensor  # (B, n, K, 2)
    pairs: Tensor  # (B, n, K, K) bool: two valid candidates a < b of a predicate
    overlaps: Tensor  # (B, n, K, K) bool: those of them that overlap
    uncovered: Tensor  # (B, n) gold arguments that no candidate covers
    sentence: Tensor  # (B,) place of the sentence in the corpus

    def cpu(self) -> ArcTarget:
        """The target on the CPU, where rounding is faster: a GPU would synchronise for every size that depends on y."""
        return ArcTarget(*(tensor.cpu() for tensor in self))

    def one_hot(self, roles: int) -> Tensor:  # (B, n, K, roles)
        """Gold as points of the simplex."""
        return torch.nn.functional.one_hot(self.gold, roles).to(torch.get_default_dtype())


class ArcCorpus:
    """Sentences and their arcs, encoded as flat tensors on a device. `encoded` is computed where it is not given."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        rules: CandidateRules,
        space: FeatureSpace,
        device: torch.device | str = "cpu",
        encoded: Encoded | None = None,
    ) -> None:
        encoded = encode(sentences, rules, space) if encoded is None else encoded
        self.sentences, self.space, self.encoded, self.device = sentences, space, encoded, torch.device(device)
        owner = np.repeat(np.arange(len(encoded)), np.diff(encoded.arc_offsets))
        row = encoded.predicate_offsets[owner] + encoded.arcs[:, 0]  # arcs are sorted by it
        sizes = np.bincount(row, minlength=len(encoded.predicates)).astype(np.int64)
        self.predicates = np.diff(encoded.predicate_offsets).astype(np.int64)  # (sentences,)
        self.widest = np.zeros(len(encoded), np.int64)
        np.maximum.at(self.widest, np.repeat(np.arange(len(encoded)), self.predicates), sizes)
        self._lengths = np.diff(encoded.token_offsets).astype(np.int64)
        flat: dict[str, NDArray[Any]] = {
            "first_token": encoded.token_offsets[:-1],
            "length": self._lengths,
            "first_predicate": encoded.predicate_offsets[:-1],
            "count": self.predicates,
            "first_arc": np.cumsum(sizes) - sizes,
            "size": sizes,
            "predicate": encoded.predicates,
            "uncovered": encoded.uncovered,
            "span": encoded.arcs[:, 1:4],
            "gold": encoded.arcs[:, 4],
            **{name: getattr(encoded, name) for name in ("words", "tags", "deprels", "heads")},
        }
        self._flat = {k: torch.from_numpy(v.astype(np.int64)).to(self.device) for k, v in flat.items()}
        self._features = torch.from_numpy(encoded.arc_features).to(self.device)
        self._words = torch.from_numpy(encoded.arc_words).to(self.device)

    @property
    def usable(self) -> NDArray[np.int64]:
        """Indices of the sentences that have an arc; the others have nothing to predict."""
        return np.flatnonzero(self.widest)

    def batch(self, sentences: NDArray[np.int64], rows: Tensor | None = None) -> tuple[ArcBatch, ArcTarget]:
        """The sentences padded to the largest of them; `rows` are their indices on the device, if already there."""
        f = self._flat
        if rows is None:
            rows = torch.from_numpy(np.asarray(sentences, np.int64).copy()).to(self.device)
        token, token_mask = _ranges(f["first_token"][rows], f["length"][rows], int(self._lengths[sentences].max()))
        width = max(1, int(self.predicates[sentences].max(initial=0)))
        row, predicate_mask = _ranges(f["first_predicate"][rows], f["count"][rows], width)
        size = torch.where(predicate_mask, _take(f["size"], row), 0)
        arc, mask = _ranges(_take(f["first_arc"], row), size, max(1, int(self.widest[sentences].max(initial=0))))
        span = _take(f["span"], arc) * mask[..., None]
        start, end = span[..., 0], span[..., 1]
        # Padding has start = end = 0 and so overlaps nothing.
        overlap = (start[..., :, None] < end[..., None, :]) & (start[..., None, :] < end[..., :, None])
        eye = torch.eye(mask.shape[-1], dtype=torch.bool, device=self.device)
        x = ArcBatch(
            words=f["words"][token] * token_mask,
            tags=f["tags"][token] * token_mask,
            deprels=f["deprels"][token] * token_mask,
            heads=torch.where(token_mask, f["heads"][token], -1),
            token_mask=token_mask,
            predicates=_take(f["predicate"], row) * predicate_mask,
            predicate_mask=predicate_mask,
            features=_take(self._features, arc) * mask[..., None],
            arc_words=_take(self._words, arc) * mask[..., None],
            spans=span[..., :2],
            argument_heads=span[..., 2],
            mask=mask,
            conflicts=overlap & ~eye,
        )
        gold, uncovered = _take(f["gold"], arc) * mask, _take(f["uncovered"], row) * predicate_mask
        pairs = (mask[..., :, None] & mask[..., None, :]).triu(1)
        return x, ArcTarget(gold, mask, x.spans, pairs, overlap & pairs, uncovered, rows)

    def decode(self, sentence: int, labels: NDArray[np.integer[Any]]) -> Props:
        """Role indices (predicates, candidates) of a sentence → its propositions; padding of the labels is ignored."""
        words = self.sentences[sentence]
        pieces = [[Argument(p.predicate, p.predicate + 1, "V")] for p in words.propositions]
        place = [0] * len(pieces)
        first, last = self.encoded.arc_offsets[sentence : sentence + 2]
        for k, start, end, _, _ in self.encoded.arcs[first:last].tolist():
            label, place[k] = int(labels[k, place[k]]), place[k] + 1
            if label > 0:
                pieces[k].append(Argument(start, end, self.space.roles[label]))
        found = zip(words.propositions, pieces, strict=True)
        return Props(len(words), tuple(Proposition(p.predicate, p.sense, tuple(sorted(own))) for p, own in found))


class ArcSource:
    """Batches of at most `cells` padded arcs; sentences of similar shape together, ties and batches in random order.

    Sentences without an arc are left out. `missed` counts their gold arguments.
    """

    def __init__(self, corpus: ArcCorpus, *, cells: int = 1024, shuffle: bool = True, seed: int = 0) -> None:
        if cells < 1:
            raise ValueError(f"a batch needs room for an arc, not for {cells}")
        self.corpus, self.cells, self.shuffle, self.seed = corpus, cells, shuffle, seed
        self._usable = corpus.usable
        offsets, uncovered = corpus.encoded.predicate_offsets, corpus.encoded.uncovered
        without = np.flatnonzero(corpus.widest == 0)
        self.missed = int(sum(uncovered[offsets[i] : offsets[i + 1]].sum() for i in without))
        # The order of ties does not change the sizes of the batches, so every epoch has the same number of them.
        self._count = len(self.plan(0))

    @property
    def sentences(self) -> int:
        return len(self._usable)

    def plan(self, epoch: int = 0) -> list[NDArray[np.int64]]:
        """Which sentences each batch of the epoch holds."""
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(self._usable) if self.shuffle else self._usable
        n, k = self.corpus.predicates, self.corpus.widest
        order = order[np.lexsort((k[order], n[order]))]
        batches: list[NDArray[np.int64]] = []
        start, widest = 0, 0
        for place, i in enumerate(order.tolist()):
            widest = max(widest, int(k[i]))
            if place > start and (place - start + 1) * int(n[i]) * widest > self.cells:
                batches.append(order[start:place])
                start, widest = place, int(k[i])
        if len(order):
            batches.append(order[start:])
        return [batches[j] for j in generator.permutation(len(batches))] if self.shuffle else batches

    def batches(self, epoch: int = 0, rank: int = 0, world: int = 1) -> Iterator[tuple[ArcBatch, ArcTarget]]:
        plan = self.plan(epoch)
        if not plan:
            return
        # One copy to the device per epoch instead of one per batch.
        rows = torch.from_numpy(np.concatenate(plan)).to(self.corpus.device).split([len(part) for part in plan])
        for k in range(self.count(world)):
            # Every process takes part in the last step, so the first batches are repeated where there are too few.
            place = (k * world + rank) % len(plan)
            yield self.corpus.batch(plan[place], rows[place])

    def count(self, world: int = 1) -> int:
        return -(-self._count // world)

    def own(self, rank: int, world: int) -> int:
        """How many batches of this process are not repeated ones."""
        return len(range(rank, self._count, world))


def _ranges(first: Tensor, size: Tensor, width: int) -> tuple[Tensor, Tensor]:  # (…), (…) → (…, width) twice
    """first + 0 … size − 1, padded with 0, and which places are valid."""
    place = torch.arange(width, device=first.device)
    mask = place < size[..., None]
    return torch.where(mask, first[..., None] + place, 0), mask


def _take(values: Tensor, index: Tensor) -> Tensor:
    # Padding points at row 0, which an empty corpus lacks.
    return values[index] if len(values) else values.new_zeros(*index.shape, *values.shape[1:])
