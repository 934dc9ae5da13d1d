"""Sentences → arrays, once: every sentence's tokens, predicates and arcs, end to end, with offsets.

An arc joins a predicate to one of its candidate spans and carries the arc's features and its gold role.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.features import SLOTS, WORD_SLOTS, FeatureSpace, arc_features
from spen.tasks.srl.sentences import Sentence

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


_OFFSETS = {"token_offsets": "words", "predicate_offsets": "predicates", "arc_offsets": "arcs"}
_WIDTHS = {"arcs": 5, "arc_features": SLOTS, "arc_words": len(WORD_SLOTS)}


def encode(sentences: Iterable[Sentence], rules: CandidateRules, space: FeatureSpace) -> Encoded:
    """Candidates and features of every sentence, as the space numbers them."""
    roles, words = space.index("roles"), space.index("words")
    tables = space.feature_indices()
    columns: dict[str, list[Any]] = {f.name: [] for f in fields(Encoded)}
    for offsets in _OFFSETS:
        columns[offsets].append(0)
    for sentence in sentences:
        numbers = [words.get(word.lower(), 1) for word in sentence.words]
        columns["words"] += numbers
        for name, cells in (("tags", sentence.xpos), ("deprels", sentence.deprels)):
            index = space.index(name)
            columns[name] += [index.get(cell, 1) for cell in cells] if cells else [1] * len(sentence)
        columns["heads"] += sentence.heads
        candidates = rules(sentence)
        heads: dict[tuple[int, int], int] = {}  # where two predicates find a span, the first head of it counts for both
        for start, end, head, _ in sorted(c for found in candidates for c in found):
            heads.setdefault((start, end), head)
        for k, (proposition, found) in enumerate(zip(sentence.propositions, candidates, strict=True)):
            gold = {(a.start, a.end): roles.get(a.role, 0) for a in proposition.arguments}
            labels = [gold.get((c.start, c.end), 0) for c in found]
            columns["arcs"] += [(k, *c[:2], heads[c[:2]], label) for c, label in zip(found, labels, strict=True)]
            columns["predicates"].append(proposition.predicate)
            columns["uncovered"].append(len(gold) - sum(label > 0 for label in labels))
        for arc in arc_features(sentence, candidates):
            slots = zip(arc.values, tables, strict=True)
            columns["arc_features"].append([t.get(value, unknown) if value else 0 for value, (t, unknown) in slots])
            columns["arc_words"].append([numbers[i] if i >= 0 else 0 for i in arc.words])
        for offsets, counted in _OFFSETS.items():
            columns[offsets].append(len(columns[counted]))
    arrays = {name: np.array(values, np.int32) for name, values in columns.items()}
    return Encoded(**{name: a.reshape(-1, _WIDTHS[name]) if name in _WIDTHS else a for name, a in arrays.items()})
