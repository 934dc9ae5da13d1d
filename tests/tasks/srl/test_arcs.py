"""Every arc of a sentence is in its batch, and batches are a function of seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest

from spen.tasks.srl.arcs import ArcCorpus, ArcSource
from spen.tasks.srl.sentences import Sentence
from tests.tasks.srl.small import batch, prepared


def test_every_arc_comes_back() -> None:
    data, rows = prepared(), np.arange(12)
    sentences, corpus = data.corpora["train"].sentences, data.corpora["train"]
    x, target = corpus.batch(rows)
    for b, sentence in enumerate(sentences[:12]):
        words, n = data.space.index("words"), len(sentence.propositions)
        assert x.words[b][x.token_mask[b]].tolist() == [words.get(word.lower(), 1) for word in sentence.words]
        assert x.heads[b][x.token_mask[b]].tolist() == list(sentence.heads)
        assert x.predicates[b][x.predicate_mask[b]].tolist() == [p.predicate for p in sentence.propositions]
        assert not x.mask[b, n:].any()
        props = corpus.decode(b, target.gold[b].numpy())
        offered = [{c[:2] for c in found} for found in data.rules(sentence)]
        encoded = corpus.encoded.arc_features[corpus.encoded.arc_offsets[b] : corpus.encoded.arc_offsets[b + 1]]
        assert np.array_equal(x.features[b][x.mask[b]].numpy(), encoded)
        for p, (proposition, found) in enumerate(zip(sentence.propositions, data.rules(sentence), strict=True)):
            here = x.mask[b, p]
            assert x.spans[b, p][here].tolist() == [[c.start, c.end] for c in found]
            assert x.argument_heads[b, p][here].tolist() == [c.head for c in found]
            gold = {(a.start, a.end): a.role for a in proposition.arguments}
            assert [data.space.roles[r] for r in target.gold[b, p][here]] == [gold.get(c[:2], "O") for c in found]
            covered = [a for a in proposition.arguments if (a.start, a.end) in offered[p]]
            assert list(props.propositions[p].arguments) == sorted(covered)
            for i, c in enumerate(found):
                for j, d in enumerate(found):
                    assert bool(x.conflicts[b, p, i, j]) == (i != j and c.start < d.end and d.start < c.end)


def test_padding_is_empty() -> None:
    x, target = batch()
    assert not x.mask.all()
    assert not x.predicate_mask.all()
    invalid = ~x.mask
    for tensor in (x.features, x.arc_words, x.spans, x.argument_heads, target.gold):
        assert not tensor[invalid].any()
    assert not x.conflicts[invalid].any()
    assert not target.uncovered[~x.predicate_mask].any()
    assert not (x.mask & ~x.predicate_mask[..., None]).any()


def test_every_sentence_once_and_within_bounds() -> None:
    corpus = prepared().corpora["train"]
    source = ArcSource(corpus, cells=64, seed=3)
    seen = [i for rows in source.plan(2) for i in rows.tolist()]
    assert sorted(seen) == corpus.usable.tolist()
    assert len(seen) == source.sentences
    for x, _ in source.batches(2):
        assert x.mask.numel() <= 64 or len(x.mask) == 1
    assert {len(source.plan(epoch)) for epoch in range(6)} == {source.count(1)}


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    corpus = prepared().corpora["train"]

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in ArcSource(corpus, cells=64, seed=seed).plan(epoch)]

    assert plan(1, 4) == plan(1, 4)
    assert plan(1, 4) != plan(1, 5)
    assert plan(1, 4) != plan(2, 4)
    still = ArcSource(corpus, cells=64, shuffle=False)
    assert [r.tolist() for r in still.plan(0)] == [r.tolist() for r in still.plan(7)]


def test_processes_share_the_batches() -> None:
    source = ArcSource(prepared().corpora["train"], cells=64)
    shares = [[t.sentence.tolist() for _, t in source.batches(0, rank, 3)] for rank in range(3)]
    assert {len(share) for share in shares} == {source.count(3)}
    together = [rows for step in zip(*shares, strict=True) for rows in step]
    assert together[: source.count(1)] == [rows.tolist() for rows in source.plan(0)]
    own = [rows for rank, share in enumerate(shares) for rows in share[: source.own(rank, 3)]]
    assert sorted(own) == sorted(rows.tolist() for rows in source.plan(0))


def test_sentences_without_arcs_are_counted() -> None:
    data = prepared()
    silent = Sentence(words=("Oh",), heads=(-1,), deprels=("root",), xpos=("UH",), upos=("INTJ",))
    corpus = ArcCorpus([silent, *data.corpora["dev"].sentences[:3]], data.rules, data.space)
    source = ArcSource(corpus)
    assert source.sentences == 3
    assert source.missed == 0
    assert corpus.decode(0, np.zeros((1, 1), np.int64)).propositions == ()
    x, _ = corpus.batch(np.array([0]))
    assert x.mask.shape == (1, 1, 1)
    assert not x.mask.any()
    with pytest.raises(ValueError, match="a batch needs room for an arc, not for 0"):
        ArcSource(corpus, cells=0)
