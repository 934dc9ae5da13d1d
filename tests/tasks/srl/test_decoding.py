"""Rounding predicates, the arc loss and the F1 that stops training."""

from __future__ import annotations

import pytest
import torch

from spen.rounding import count_violations
from spen.tasks.srl import evaluate as evaluating
from spen.tasks.srl.arcs import ArcSource
from spen.tasks.srl.build import build
from spen.tasks.srl.decoding import DECODERS, constraints, decode_roles, violations
from spen.tasks.srl.evaluate import evaluate, label_sentences
from spen.tasks.srl.metrics import ConstrainedLoss, RoleF1, arc_cost, arc_log_loss
from spen.tasks.srl.recipes import find_recipe
from spen.tasks.srl.score import score
from tests.tasks.srl.small import batch, prepared

DATA = prepared()
ROLES = len(DATA.space.roles)


def noise(seed: int = 0) -> torch.Tensor:
    x, _ = batch()
    return torch.softmax(3 * torch.randn(*x.mask.shape, ROLES, generator=torch.Generator().manual_seed(seed)), -1)


@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_keep_the_constraints(decoder: str) -> None:
    _, target = batch()
    found = decode_roles(noise(), target, DATA.space.core, decoder)  # type: ignore[arg-type]
    assert found.shape == target.mask.shape
    assert not found[~target.mask].any()
    left = count_violations(found.flatten(0, 1)[:, None], constraints(target, DATA.space.core)).total.sum()
    assert (int(left) > 0) == (decoder == "argmax")
    assert int(violations(noise(), target, DATA.space.core)) > 0


def test_better_decoders_score_higher() -> None:
    _, target = batch()
    y = noise(1)
    value = {}
    for decoder in DECODERS:
        found = decode_roles(y, target, DATA.space.core, decoder)
        value[decoder] = float((y.log().gather(-1, found[..., None]).squeeze(-1) * target.mask).sum())
    assert value["greedy"] <= value["ad3"] + 1e-4 <= value["ilp"] + 2e-4
    assert value["ilp"] <= value["argmax"]


def test_spans_overlap_as_in_the_batch() -> None:
    x, target = batch()
    rules = constraints(target, DATA.space.core)
    k = x.mask.shape[-1]
    both = x.mask[..., :, None] & x.mask[..., None, :]
    assert torch.equal(rules.conflicts().reshape(*x.mask.shape, k) & both, x.conflicts)


def test_an_unknown_decoder_is_named() -> None:
    _, target = batch()
    with pytest.raises(ValueError, match="no decoder is called 'beam'; choose from argmax, greedy, ad3, ilp"):
        decode_roles(noise(), target, DATA.space.core, "beam")  # type: ignore[arg-type]


def test_losses_by_hand() -> None:
    _, target = batch()
    y = noise()
    logs, costs = [], [0.0] * len(y)
    for b, p, a in target.mask.nonzero().tolist():
        right = float(y[b, p, a, target.gold[b, p, a]])
        logs.append(-torch.tensor(right).log().item())
        costs[b] += 1 - right
    assert float(arc_log_loss(y, target)) == pytest.approx(sum(logs) / len(logs), rel=1e-5)
    assert arc_cost(y, target).tolist() == pytest.approx(costs, rel=1e-5)
    gold = target.one_hot(ROLES)
    assert float(arc_log_loss(gold, target)) == 0
    assert not arc_cost(gold, target).any()


def test_the_price_of_violations_by_hand() -> None:
    x, target = batch()
    y, extra = noise(), 0.0
    for b, p, a in target.mask.nonzero().tolist():
        for c in (c for c in target.mask[b, p].nonzero().flatten().tolist() if c > a):
            if bool(x.conflicts[b, p, a, c]):
                extra += max(0.0, float(y[b, p, a, 1:].sum() + y[b, p, c, 1:].sum()) - 1)
            extra += sum(max(0.0, float(y[b, p, a, k] + y[b, p, c, k]) - 1) for k in DATA.space.core)
    plain, priced = (float(ConstrainedLoss(DATA.space.core, w)(y, target)) for w in (0.0, 2.0))
    assert plain == pytest.approx(float(arc_log_loss(y, target)))
    assert priced - plain == pytest.approx(2 * extra / int(target.mask.sum()), rel=1e-4)
    gold = target.one_hot(ROLES)
    assert float(ConstrainedLoss(DATA.space.core, 2.0)(gold, target)) == 0


def test_f1_of_gold_and_of_nothing() -> None:
    source = ArcSource(DATA.corpora["dev"], cells=128, shuffle=False)
    perfect, nothing = RoleF1(DATA.space.core, missed=source.missed), RoleF1(DATA.space.core, missed=source.missed)
    uncovered = source.missed
    for _, target in source.batches():
        perfect.update(target.one_hot(ROLES), target)
        nothing.update(torch.eye(ROLES)[torch.zeros_like(target.gold)], target)
        uncovered += int(target.uncovered.sum())
    arguments = sum(len(p.arguments) for s in DATA.corpora["dev"].sentences for p in s.propositions)
    assert int(perfect.gold) + source.missed == arguments
    recall = 1 - uncovered / arguments
    assert float(perfect.compute()) == pytest.approx(200 * recall / (1 + recall), abs=1e-3)
    assert float(nothing.compute()) == 0
    assert int(perfect.clashes) == 0


def test_the_official_score_of_labelled_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with batches of other sizes."""
    model, corpus = build(find_recipe("spen"), DATA), DATA.corpora["dev"]
    figures, props = evaluate(model, corpus, decoders=("greedy", "ad3"))
    monkeypatch.setitem(evaluating.CELLS, "cpu", 64)
    again, violated = label_sentences(model, corpus, ("ad3",))
    assert again["ad3"] == props["ad3"]
    assert violated == figures["violations"]
    assert score(corpus.sentences, again["ad3"]).f1 == pytest.approx(figures["f1"]["ad3"], abs=1e-3)
    assert figures["predicates"] == sum(len(s.propositions) for s in corpus.sentences)
    assert set(figures["f1"]) == {"greedy", "ad3"}
