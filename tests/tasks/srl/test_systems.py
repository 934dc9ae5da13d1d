"""Every recipe is found, built and trained for two steps; knobs turn something; base runs are taken over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spen.tasks.srl.arcs import ArcSource
from spen.tasks.srl.build import _principal, build, stages
from spen.tasks.srl.evaluate import follow
from spen.tasks.srl.features import PATH
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import ABLATIONS, RECIPES, TERMS, SrlRecipe, find_recipe
from spen.tasks.srl.train import train
from tests.tasks.srl.small import batch, prepared


class Two:
    """The first two batches of a source."""

    def __init__(self, source: ArcSource) -> None:
        self.source = source

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Any, Any]]:
        yield from (pair for pair, _ in zip(self.source.batches(epoch, rank, world), range(2), strict=False))

    def count(self, world: int) -> int:
        return 2


@pytest.mark.parametrize("name", [*RECIPES, *ABLATIONS])
def test_two_steps_of_every_stage(name: str) -> None:
    recipe = replace(find_recipe(name), width=24, encoder_width=8, hidden=8)
    data = prepared(recipe.templates)
    model = build(recipe, data)
    x, target = data.corpora["train"].batch(np.arange(4))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for stage in stages(recipe, len(data.space.roles), data.space.core):
        model.train()
        free = stage.trained(model)
        optimizer = torch.optim.Adam(free.values(), lr=stage.learning_rate)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = stage.objective(model, x, target)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert np.isfinite(losses).all()
        assert stage.objective.predict(model.eval(), x).shape == (*x.mask.shape, len(data.space.roles))
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert any(k.startswith("features.") for k in moved)
    if recipe.objective in ("end_to_end", "ssvm"):
        for term in recipe.terms:
            assert any(f".{term}." in k for k in moved), f"{term} learns nothing"
        assert recipe.objective == "ssvm" or "minimizer.rule.rates.log" in moved


def test_recipes_carry_the_papers_numbers() -> None:
    assert find_recipe("spen").paper["ad3"].test == 80.7
    assert find_recipe("local").paper["greedy"].dev == 78.0
    assert find_recipe("convex").paper["ad3"].test == 80.3
    spen = find_recipe("spen")
    assert (spen.steps, spen.update, spen.hidden, spen.dropout, spen.terms) == (10, "logits", 50, 0.5, TERMS)
    assert (find_recipe("spen-no-hinge").violation_weight, find_recipe("spen").violation_weight) == (0.0, 6.0)
    rates = build(find_recipe("spen-steps-20-rate-0.2"), prepared()).minimizer.rule.rates()
    torch.testing.assert_close(rates, torch.full((20,), 0.2))
    with pytest.raises(ValueError, match="no recipe is called 'crf'; choose from local, spen"):
        find_recipe("crf")


def test_a_recipe_survives_its_description() -> None:
    for recipe in (RECIPES | ABLATIONS).values():
        held = json.loads(json.dumps(recipe.describe()))
        assert replace(SrlRecipe.from_description(held), paper=recipe.paper) == recipe
        assert SrlRecipe.from_description({**held, "attention": False}) == SrlRecipe.from_description(held)
    for option in ({"attention": True}, {"newer": False}):
        claim = f"^the recipe has the option {next(iter(option))!r}, which this version of spen does not know: open "
        with pytest.raises(ValueError, match=claim):
            SrlRecipe.from_description({**held, **option})


KNOBS: dict[str, Any] = {
    "terms": TERMS[:2],
    "hidden": 20,
    "convex": True,
    "constraints": False,
    "nonnegative": True,
    "constraint_weight": 1.0,
    "entropy": 0.5,
    "pairs": 2,
    "update": "projected",
    "steps": 3,
    "rate": 0.3,
    "stop": 0.2,
}


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_of_the_energy_and_the_descent_turns(knob: str) -> None:
    data = prepared()
    x, _ = batch()

    def answer(recipe: SrlRecipe) -> torch.Tensor:
        model = build(recipe, data).eval()
        torch.manual_seed(7)
        with torch.no_grad():
            for name, parameter in model.energy.named_parameters():
                if "network" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
            model.features.roles.bias[1] += 4  # everybody wants the same core role, so constraints bite
        return model(x).output.detach()

    spen = find_recipe("spen")
    assert not torch.allclose(answer(spen), answer(replace(spen, **{knob: KNOBS[knob]})), atol=1e-6)


def test_pairs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="^an energy of pairs of arcs is not convex in y: leave out pairs or convex$"):
        find_recipe("convex:pairs=2")
    with pytest.raises(ValueError, match="^pairs is -1 but must be 0 or more$"):
        find_recipe("spen:pairs=-1")


def test_a_small_f_of_x() -> None:
    """`width` and `word_dimensions` size F(x); the kept components are those in which the vectors differ most."""
    data = prepared()
    model = build(replace(find_recipe("local"), width=24, word_dimensions=7), data)
    assert model.features.features.embedding_dim == 24
    assert model.features.words.dimensions == 7
    spread = torch.tensor([5.0, 1.0, 3.0, 0.1])
    table = torch.randn(400, 4, generator=torch.Generator().manual_seed(0)) * spread
    table[0] = 0
    kept = _principal(table, 2)
    assert kept.shape == (400, 2)
    assert kept[0].tolist() == [0, 0]
    assert float(kept[1:].std()) == pytest.approx(float(table[1:].std()))
    assert float(torch.corrcoef(torch.stack([kept[1:, 1], table[1:, 0]]))[0, 1].abs()) > 0.99
    assert float(torch.corrcoef(torch.stack([kept[1:, 0], table[1:, 2]]))[0, 1].abs()) > 0.99
    assert _principal(table, 4) is table


def test_training_knobs_reach_the_stages() -> None:
    recipe = replace(
        find_recipe("spen"), pretrain_epochs=2, clamped_epochs=4, joint_epochs=5, patience=6, pretrain_rate=0.1,
        clamped_rate=0.2, joint_rate=0.3, weight_decay=0.4, decay=0.5,
    )  # fmt: skip
    first, second, third = stages(recipe, 10, (1, 2))
    assert (first.epochs, second.epochs, third.epochs) == (2, 4, 5)
    assert (first.learning_rate, second.learning_rate, third.learning_rate) == (0.1, 0.2, 0.3)
    assert (first.patience, third.patience, third.weight_decay) == (6, 6, 0.4)
    assert (first.decay_to, third.decay_to) == (0.5, 0.5)
    assert second.clamp == ("features.*", "init.*")
    x, target = batch()
    model = build(recipe, prepared())
    with torch.no_grad():
        model.features.roles.bias[1] += 4
    plain, strict = (
        stages(replace(recipe, violation_weight=w), 10, prepared().space.core)[2].objective.of(model.eval()(x), target)
        for w in (0.0, 5.0)
    )
    assert float(strict.detach()) > float(plain.detach())


@pytest.mark.slow
def test_a_base_run_is_taken_over_and_a_run_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spen.tasks.srl.train.sources", lambda *_: _two_sources())
    data = prepared()
    small = {"pretrain_epochs": 1, "clamped_epochs": 1, "joint_epochs": 1}
    local, spen = (replace(find_recipe(name), **small) for name in ("local", "spen"))
    base = train(local, data, tmp_path / "local", progress=False)
    model = train(spen, data, tmp_path / "spen", base=tmp_path / "local", progress=False)
    assert base is not None
    assert model is not None
    stages_run = [json.loads(line)["stage"] for line in (tmp_path / "spen" / "metrics.jsonl").read_text().splitlines()]
    assert stages_run == ["clamped", "joint"]
    opened = Labeller.open(tmp_path / "spen")
    assert replace(opened.recipe, paper=spen.paper) == spen
    x, _ = batch()
    assert torch.allclose(opened.model(x).output, model.eval()(x).output)
    with pytest.raises(ValueError, match="the base run has another F\\(x\\) than wrong"):
        train(replace(spen, encoder="contextual"), data, tmp_path / "wrong", base=tmp_path / "local")


def _two_sources() -> tuple[Two, ArcSource]:
    corpora = prepared().corpora
    return Two(ArcSource(corpora["train"], cells=64)), ArcSource(corpora["dev"], cells=512, shuffle=False)


def test_a_recipe_can_be_changed_by_name() -> None:
    found = find_recipe("spen:steps=5:convex=true:rate=0.2:update=mirror:terms=argument_set+label_coherence")
    assert (found.steps, found.convex, found.rate, found.update) == (5, True, 0.2, "mirror")
    assert found.terms == ("argument_set", "label_coherence")
    assert found.paper == {}
    assert find_recipe("spen:base=local+dropout=0.3").base == "local:dropout=0.3"
    assert SrlRecipe.from_description(json.loads(json.dumps(found.describe()))) == found
    for name, problem in (
        ("spen:speed=3", "recipe spen has no option 'speed'; it has templates"),
        ("spen:steps", "'steps' does not read as key=value"),
        ("spen:steps=few", "steps is a whole number, not 'few'"),
        ("spen:convex=maybe", "convex is true or false, not 'maybe'"),
        ("spen:update=newton", "update is one of logits, through_logits, mirror, projected, not 'newton'"),
    ):
        with pytest.raises(ValueError, match=problem):
            find_recipe(name)


def test_pruning_leaves_the_roles_that_a_path_has_in_training(tmp_path: Path) -> None:
    data = prepared()
    recipe = replace(find_recipe("local:role_paths=true"), width=24, pretrain_epochs=1)
    corpus, allowed = data.corpora["train"], data.role_paths()
    first = data.space.first_row(PATH)
    columns = corpus.encoded.arc_features[:, PATH] - first, corpus.encoded.arcs[:, 4]
    pairs = set(zip(*(column.tolist() for column in columns), strict=True))
    assert {(int(p), int(r)) for p, r in allowed.nonzero() if r} == {(p, r) for p, r in pairs if r}
    assert 0 < allowed.float().mean() < 0.5
    x, target = batch()
    model = build(recipe, data)
    scores = model.eval().features(x).scores
    paths = x.features[..., PATH] - first
    assert torch.equal((scores == -30)[x.mask], ~allowed[paths[x.mask]])
    assert (scores.gather(-1, target.gold[..., None]) > -30).all()
    assert model.feedforward(x)[x.mask][~allowed[paths[x.mask]]].max() < 1e-9
    train(recipe, data, tmp_path / "run", progress=False)
    again = Labeller.open(tmp_path / "run").model  # the table is among the weights
    assert torch.equal(again.features.role_paths, allowed)


def test_a_descent_that_stops_early_counts_its_steps() -> None:
    data = prepared()
    found = {}
    for stop in (0.0, 0.05, 10.0):
        model = build(replace(find_recipe("spen"), stop=stop), data)
        found[stop] = follow(model, data.corpora["dev"])
        assert len(found[stop]["f1"]) == len(found[stop]["violations"]) == len(found[stop]["energy"]) == 11
    assert found[0.0]["steps_used"] == 10 > found[0.05]["steps_used"] >= found[10.0]["steps_used"] == 1
    assert find_recipe("spen-stop").stop == 3e-3
