"""F(x): span means, the scorer, the sentence encoder; padding and neighbours must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from spen.tasks.srl.build import build
from spen.tasks.srl.contextual import kinship
from spen.tasks.srl.local import ArcInit, span_means
from spen.tasks.srl.recipes import find_recipe
from tests.tasks.srl.small import batch, prepared


def test_span_means_by_loops() -> None:
    token = torch.randn(2, 6, 3)
    spans = torch.tensor([[[[0, 2], [3, 6]], [[5, 6], [0, 0]]], [[[1, 4], [0, 6]], [[0, 1], [2, 3]]]])
    found = span_means(token, spans)
    for b, p, a in np.ndindex(2, 2, 2):
        start, end = spans[b, p, a].tolist()
        expected = token[b, start:end].mean(0) if end > start else torch.zeros(3)
        assert torch.allclose(found[b, p, a], expected, atol=1e-5)


def test_the_local_model_is_the_sum_the_appendix_says() -> None:
    data = prepared()
    scorer = build(find_recipe("local"), data).features.eval()
    x, _ = batch()
    out = scorer(x)
    b, p, a = x.mask.nonzero()[3].tolist()
    rows = [scorer.features.weight[i] for i in x.features[b, p, a].tolist() if i]
    words = torch.cat([scorer.words.table.weight[i] for i in x.arc_words[b, p, a].tolist()])
    embedded = torch.stack(rows).sum(0) + scorer.slots.weight @ words + scorer.slots.bias
    hidden = torch.tanh(scorer.hidden(torch.tanh(embedded)))
    assert torch.allclose(out.arc[b, p, a], hidden, atol=1e-5)
    assert torch.allclose(out.scores[b, p, a], scorer.roles(hidden), atol=1e-5)
    assert torch.allclose(out.predicate[b, p], scorer.words.table.weight[x.words[b, x.predicates[b, p]]])
    assert (scorer.features.embedding_dim, scorer.hidden.out_features, scorer.dropout.p) == (300, 250, 0.5)
    start = ArcInit()(out)
    assert torch.equal(start[x.mask], out.scores[x.mask])
    assert (torch.softmax(start, -1)[~x.mask][:, 0] > 1 - 1e-6).all()


@pytest.mark.parametrize("name", ["local", "best-local"])
def test_a_sentence_alone_and_in_company(name: str) -> None:
    data = prepared(find_recipe(name).templates)
    corpus = data.corpora["train"]
    scorer = build(find_recipe(name), data).features.eval()
    rows = corpus.usable[:7]
    together, x = scorer(corpus.batch(rows)[0]), corpus.batch(rows)[0]
    for k, i in enumerate(rows.tolist()):
        alone = scorer(corpus.batch(np.array([i]))[0])
        n, width = alone.mask.shape[1:]
        mask = alone.mask[0]
        assert torch.equal(x.mask[k, :n, :width], mask)
        for one, many in zip(alone[:4], together[:4], strict=True):
            part = many[k, :n, :width] if one.dim() == 4 and one.shape[2] == width else many[k, :n]
            assert torch.allclose(one[0], part, atol=1e-5)


def test_dropout_reaches_what_it_should() -> None:
    data = prepared()
    x, _ = batch()
    torch.manual_seed(0)
    plain = build(find_recipe("local"), data).features
    assert torch.equal(plain.train()(x).predicate, plain.eval()(x).predicate)
    assert not torch.equal(plain.train()(x).scores, plain.eval()(x).scores)
    thinned = build(replace(find_recipe("local"), feature_dropout=0.3, dropout=0.0), data).features
    assert not torch.equal(thinned.train()(x).scores, thinned.eval()(x).scores)


def test_the_encoder_is_as_wide_and_deep_as_its_recipe_says() -> None:
    recipe = replace(find_recipe("best-local"), encoder_width=12, encoder_layers=3, encoder_dropout=0.25)
    encoder = build(recipe, prepared("all")).features.encoder
    assert (encoder.recurrent.hidden_size, encoder.recurrent.num_layers, encoder.dropout.p) == (12, 3, 0.25)
    assert encoder.recurrent.dropout == 0.25


def test_kinship_by_hand() -> None:
    # 0 ← 1 (root) → 2 → 3 → 4, and 2 → 5; the predicate is 3.
    heads = torch.tensor([[1, -1, 1, 2, 3, 2, 4]])
    assert kinship(heads, torch.tensor([3])).tolist() == [[7, 6, 4, 1, 2, 5, 3]]
    # At the root there is neither parent nor grandparent.
    assert kinship(heads, torch.tensor([1])).tolist() == [[2, 1, 2, 3, 0, 3, 0]]
