"""The compact layout says the same as the padded one, and batches are a function of seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spen.tasks.srl.arcs import ArcCorpus, ArcSource, scatter_labels
from spen.tasks.srl.batches import collate
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.sentences import Sentence
from tests.tasks.srl.small import batch, prepared


def test_the_same_arcs_as_the_complete_graph() -> None:
    corpus = prepared().corpora["train"]
    rows = np.arange(12)
    x, target = corpus.batch(rows)
    wide = collate(corpus.encoded, rows)
    assert torch.equal(x.words, wide.words)
    assert torch.equal(x.heads, wide.heads)
    assert torch.equal(x.predicates, wide.predicates)
    for b in range(12):
        for p in range(int(wide.predicate_mask[b].sum())):
            arcs = wide.mask[b, p].nonzero().flatten()
            here = x.mask[b, p]
            assert int(here.sum()) == len(arcs)
            assert torch.equal(x.features[b, p][here], wide.arc_features[b, p, arcs])
            assert torch.equal(x.arc_words[b, p][here], wide.arc_words[b, p, arcs])
            assert torch.equal(x.spans[b, p][here], wide.spans[b, arcs])
            assert torch.equal(x.argument_heads[b, p][here], wide.argument_heads[b, arcs])
            assert torch.equal(target.gold[b, p][here], wide.gold[b, p, arcs])
            k = len(arcs)
            assert torch.equal(x.conflicts[b, p, :k, :k], wide.conflicts[b][arcs][:, arcs])
        labels = scatter_labels(corpus, b, target.gold[b].numpy())
        n, m = labels.shape
        assert np.array_equal(labels, wide.gold[b, :n, :m].numpy())


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
    assert sorted(seen) == np.flatnonzero(corpus.widest > 0).tolist()
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
    corpus = ArcCorpus(encode([silent, *data.splits["dev"][:3]], data.rules, data.space))  # type: ignore[index]
    source = ArcSource(corpus)
    assert source.sentences == 3
    assert source.missed == 0
    assert scatter_labels(corpus, 0, np.zeros((1, 1), np.int64)).shape == (0, 0)
    x, _ = corpus.batch(np.array([0]))
    assert x.mask.shape == (1, 1, 1)
    assert not x.mask.any()
    with pytest.raises(ValueError, match="a batch needs room for an arc, not for 0"):
        ArcSource(corpus, cells=0)
