"""Padded tensors: masks, conflicts, gold, and an order that seed and epoch decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spen.tasks.srl.batches import Batches, collate, decode_batches
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.features import SLOTS, WORD_SLOTS, FeatureSpace
from spen.tasks.srl.grammar import make_corpus
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Sentence

SILENT = Sentence(words=("Oh", "."), heads=(-1, 0), deprels=("root", "punct"), xpos=("UH", "."), upos=("INTJ", "PUNCT"))
CORPUS = [*make_corpus(120), SILENT]
RULES = CandidateRules.fit(CORPUS)
SPACE = FeatureSpace.fit(CORPUS, RULES)
ENCODED = encode(CORPUS, RULES, SPACE)


def test_every_arc_comes_back() -> None:
    batches = Batches(ENCODED, size=16)
    seen = []
    for batch in batches:
        for row, i in enumerate(batch.sentence.tolist()):
            seen.append(i)
            sentence, found = CORPUS[i], RULES(CORPUS[i])
            n = len(sentence.propositions)
            assert batch.token_mask[row].sum() == len(sentence)
            assert batch.predicates[row][batch.predicate_mask[row]].tolist() == [
                p.predicate for p in sentence.propositions
            ]
            assert not batch.mask[row, n:].any()
            spans = batch.spans[row].tolist()
            for k, (proposition, candidates) in enumerate(zip(sentence.propositions, found, strict=True)):
                arcs = batch.mask[row, k].nonzero().flatten().tolist()
                assert [tuple(spans[a]) for a in arcs] == [c[:2] for c in candidates]
                gold = {(a.start, a.end): a.role for a in proposition.arguments}
                roles = [SPACE.roles[batch.gold[row, k, a]] for a in arcs]
                assert roles == [gold.get(c[:2], "O") for c in candidates]
    assert sorted(seen) == list(range(120))
    assert (batches.sentences, batches.skipped) == (120, 1)


def test_padding_is_empty_everywhere() -> None:
    batch = collate(ENCODED, np.arange(len(CORPUS)))
    invalid = ~batch.mask
    assert not batch.gold[invalid].any()
    assert not batch.arc_features[invalid].any()
    assert not batch.arc_words[invalid].any()
    assert not batch.words[~batch.token_mask].any()
    assert (batch.heads[~batch.token_mask] == -1).all()
    assert (batch.arc_features[batch.mask] > 0).any(-1).all()
    assert not (batch.mask & ~batch.predicate_mask[:, :, None]).any()
    assert not (batch.mask & ~batch.argument_mask[:, None, :]).any()
    assert batch.arc_features.shape[-1] == SLOTS
    assert batch.arc_words.shape[-1] == len(WORD_SLOTS)


def test_conflicts_are_overlaps() -> None:
    batch = collate(ENCODED, np.arange(40))
    for row in range(40):
        spans, real = batch.spans[row].tolist(), batch.argument_mask[row].tolist()
        for a, (s, e) in enumerate(spans):
            for b, (t, f) in enumerate(spans):
                shared = set(range(s, e)) & set(range(t, f))
                assert bool(batch.conflicts[row, a, b]) == (a != b and bool(shared) and real[a] and real[b])


def test_gold_respects_the_constraints() -> None:
    batch = collate(ENCODED, np.arange(120))
    used = batch.gold > 0
    both = used[:, :, :, None] & used[:, :, None, :] & batch.conflicts[:, None]
    assert not both.any()
    core = torch.tensor(SPACE.core)
    assert batch.one_hot(len(SPACE.roles))[..., core].sum(2).max() <= 1


def test_one_hot_select_and_to() -> None:
    batch = collate(ENCODED, np.arange(6))
    points = batch.one_hot(len(SPACE.roles))
    assert points.shape == (*batch.gold.shape, len(SPACE.roles))
    assert torch.equal(points.argmax(-1), batch.gold)
    assert (points[~batch.mask][:, 0] == 1).all()
    part = batch.select(torch.tensor([4, 1]))
    assert part.sentence.tolist() == [4, 1]
    assert all(a.shape[0] == 2 for a in part)
    assert batch.select(torch.arange(6) == 3).sentence.tolist() == [3]
    assert batch.to("cpu").gold.equal(batch.gold)


def plan(batches: Batches, epoch: int) -> list[list[int]]:
    return [b.tolist() for b in batches.plan(epoch)]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert plan(Batches(ENCODED, size=8, seed=1), 5) == plan(Batches(ENCODED, size=8, seed=1), 5)
    batches = Batches(ENCODED, size=8, seed=1)
    list(batches.epoch(0))
    assert plan(batches, 5) == plan(Batches(ENCODED, size=8, seed=1), 5), "earlier epochs leave no trace"
    assert plan(batches, 5) != plan(batches, 6)
    assert plan(batches, 5) != plan(Batches(ENCODED, size=8, seed=2), 5)
    still = Batches(ENCODED, size=8, shuffle=False)
    assert plan(still, 0) == plan(still, 1)
    assert sorted(i for batch in plan(batches, 3) for i in batch) == list(range(120))


def test_size_and_cells_bound_a_batch() -> None:
    assert max(map(len, plan(Batches(ENCODED, size=8), 0))) == 8
    for batch in Batches(ENCODED, size=64, cells=200):
        assert batch.mask.numel() <= 200 or len(batch.mask) == 1
    assert len(plan(Batches(ENCODED, cells=200), 0)) > len(plan(Batches(ENCODED, cells=None), 0))
    with pytest.raises(ValueError, match="a batch needs room for a sentence: size 0 and cells 16384 must be positive"):
        Batches(ENCODED, size=0)


def test_buckets_save_padding() -> None:
    bucketed = sum(b.mask.numel() for b in Batches(ENCODED, size=16))
    mixed = sum(collate(ENCODED, np.arange(120)[i::8]).mask.numel() for i in range(8))
    assert bucketed < 0.8 * mixed


def test_nothing_to_collate_still_has_a_shape() -> None:
    batch = collate(ENCODED, np.array([120]))
    assert batch.mask.shape == (1, 1, 1)
    assert not batch.mask.any()
    assert list(Batches(encode([SILENT], RULES, SPACE))) == []


def test_gold_indices_decode_to_gold() -> None:
    encoded = encode(CORPUS, CandidateRules(), SPACE)
    predictions = [(batch.sentence, batch.gold) for batch in Batches(encoded)]
    found = decode_batches(encoded, CORPUS, predictions, SPACE.roles)
    assert score(CORPUS, found).f1 == 100
    none = decode_batches(encoded, CORPUS, [], SPACE.roles)
    assert [len(p.propositions) for p in none] == [len(s.propositions) for s in CORPUS]
    assert score(CORPUS, none).overall.correct == 0
