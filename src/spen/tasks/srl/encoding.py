"""Sentences → arrays, once: every sentence's tokens, predicates and arcs, end to end, with offsets.

An arc joins a predicate to one of its candidate spans and carries the arc's features and its gold role.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.features import SLOTS, WORD_SLOTS, FeatureSpace, arc_features
from spen.tasks.srl.sentences import Argument, Proposition, Props, Sentence

__all__ = ["Encoded", "decode", "encode"]

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """A corpus as arrays. Sentence i owns tokens token_offsets[i]:token_offsets[i+1], and so for the other kinds."""

    token_offsets: Ints  # (sentences + 1,)
    predicate_offsets: Ints
    arc_offsets: Ints
    words: Ints  # (tokens,)
    tags: Ints
    deprels: Ints
    heads: Ints  # token within the sentence, −1 at the root
    predicates: Ints  # (predicates,) token within the sentence
    arcs: Ints  # (arcs, 5) predicate within the sentence; start, end and head of the argument; gold role
    arc_features: Ints  # (arcs, SLOTS) rows of the feature table, 0 = none
    arc_words: Ints  # (arcs, WORD_SLOTS) word vocabulary, 0 = none
    uncovered: Ints  # (predicates,) gold arguments that no candidate covers or whose role training never had

    def __len__(self) -> int:
        return len(self.token_offsets) - 1


def encode(sentences: Iterable[Sentence], rules: CandidateRules, space: FeatureSpace) -> Encoded:
    """Candidates and features of every sentence, as the space numbers them."""
    roles, words = space.index("roles"), space.index("words")
    tables = space.feature_indices()
    offsets: list[list[int]] = [[0], [0], [0]]
    columns: dict[str, list[int]] = {name: [] for name in ("words", "tags", "deprels", "heads")}
    predicates: list[int] = []
    uncovered: list[int] = []
    arcs: list[tuple[int, ...]] = []
    rows: list[list[int]] = []
    word_rows: list[list[int]] = []
    for sentence in sentences:
        numbers = [words.get(word.lower(), 1) for word in sentence.words]
        columns["words"] += numbers
        for name, cells in (("tags", sentence.xpos), ("deprels", sentence.deprels)):
            index = space.index(name)
            columns[name] += [index.get(cell, 1) for cell in cells] if cells else [1] * len(sentence)
        columns["heads"] += sentence.heads
        candidates = rules(sentence)
        heads: dict[tuple[int, int], int] = {}  # of two predicates that find a span, one decides what its head is
        for start, end, head, _ in sorted(c for found in candidates for c in found):
            heads.setdefault((start, end), head)
        for k, (proposition, found) in enumerate(zip(sentence.propositions, candidates, strict=True)):
            gold = {(a.start, a.end): roles.get(a.role, 0) for a in proposition.arguments}
            labels = [gold.get((c.start, c.end), 0) for c in found]
            arcs += [(k, *c[:2], heads[c[:2]], label) for c, label in zip(found, labels, strict=True)]
            predicates.append(proposition.predicate)
            uncovered.append(len(gold) - sum(label > 0 for label in labels))
        for arc in arc_features(sentence, candidates):
            rows.append(
                [
                    table.get(value, unknown) if value else 0
                    for value, (table, unknown) in zip(arc.values, tables, strict=True)
                ]
            )
            word_rows.append([numbers[i] if i >= 0 else 0 for i in arc.words])
        sizes = (len(columns["words"]), len(predicates), len(arcs))
        for offset, size in zip(offsets, sizes, strict=True):
            offset.append(size)
    return Encoded(
        token_offsets=np.array(offsets[0], np.int32),
        predicate_offsets=np.array(offsets[1], np.int32),
        arc_offsets=np.array(offsets[2], np.int32),
        **{name: np.array(values, np.int32) for name, values in columns.items()},
        predicates=np.array(predicates, np.int32),
        arcs=np.array(arcs, np.int32).reshape(-1, 5),
        arc_features=np.array(rows, np.int32).reshape(-1, SLOTS),
        arc_words=np.array(word_rows, np.int32).reshape(-1, len(WORD_SLOTS)),
        uncovered=np.array(uncovered, np.int32),
    )


def decode(
    encoded: Encoded,
    sentence: int,
    labels: NDArray[np.integer[Any]],  # (predicates, candidates) role indices; padding beyond them is ignored
    roles: Sequence[str],
    senses: Sequence[str],
) -> Props:
    """Role indices of a sentence → its propositions, `senses` naming the predicates in order."""
    length = int(encoded.token_offsets[sentence + 1] - encoded.token_offsets[sentence])
    predicates = _slice(encoded.predicates, encoded.predicate_offsets, sentence).tolist()
    if len(senses) != len(predicates):
        raise ValueError(f"sentence {sentence} has {len(predicates)} predicates but {len(senses)} senses were given")
    pieces = [[Argument(predicate, predicate + 1, "V")] for predicate in predicates]
    place = [0] * len(predicates)
    for k, start, end, _, _ in _slice(encoded.arcs, encoded.arc_offsets, sentence).tolist():
        label, place[k] = int(labels[k, place[k]]), place[k] + 1
        if label > 0:
            pieces[k].append(Argument(start, end, roles[label]))
    found = zip(predicates, senses, pieces, strict=True)
    return Props(length, tuple(Proposition(p, sense, tuple(sorted(mine))) for p, sense, mine in found))


def _slice(values: Ints, offsets: Ints, i: int) -> Ints:
    return values[offsets[i] : offsets[i + 1]]
