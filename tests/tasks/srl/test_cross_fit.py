"""Scores of training sentences by models that have not seen them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import spen
from spen.storage import load_weights
from spen.tasks.srl.arcs import ArcSource
from spen.tasks.srl.build import build, stages
from spen.tasks.srl.cross_fit import CrossFitted, cross_fitted_scores, split
from spen.tasks.srl.recipes import SrlRecipe, find_recipe
from spen.tasks.srl.train import train
from tests.tasks.srl.small import batch, prepared

SMALL = replace(find_recipe("spen"), width=24, hidden=8, pretrain_epochs=1, clamped_epochs=1, joint_epochs=1)


def test_values_of_arcs_are_laid_out_as_in_a_batch() -> None:
    corpus = prepared().corpora["train"]
    x, target = batch()
    features = torch.from_numpy(corpus.encoded.arc_features)
    assert torch.equal(corpus.padded(features, target.sentence, x.mask), x.features)


def test_parts_hold_every_sentence_once() -> None:
    corpus = prepared().corpora["train"]
    parts = split(corpus, 4, seed=1)
    assert np.array_equal(np.sort(np.concatenate(parts)), corpus.usable)
    assert {len(part) for part in parts} <= {len(corpus.usable) // 4, len(corpus.usable) // 4 + 1}
    with pytest.raises(ValueError, match="cross_fit is a number of folds from 2 to .* sentences, not 1"):
        split(corpus, 1, seed=0)


def test_each_sentence_is_scored_by_the_model_that_did_not_see_it(tmp_path: Path) -> None:
    data = prepared()
    corpus, roles = data.corpora["train"], len(data.space.roles)
    models: list[nn.Module] = []
    seen: list[set[int]] = []

    def untrained(source: ArcSource, folder: Path, seconds: float | None) -> nn.Module:
        seen.append({int(i) for rows in source.plan() for i in rows})
        models.append(build(SMALL, data, seed=len(models)).features)
        return models[-1]

    scores = cross_fitted_scores(corpus, roles, tmp_path, untrained, folds=3, seed=0, seconds=None)
    assert scores is not None
    for model, known in zip(models, seen, strict=True):
        others = np.array([i for i in corpus.usable if int(i) not in known])
        x, target = corpus.batch(others[:5])
        torch.testing.assert_close(corpus.padded(scores, target.sentence, x.mask), model.eval()(x).scores)
    assert set.union(*seen) == set(corpus.usable.tolist())
    assert not set.intersection(*seen)
    again = cross_fitted_scores(corpus, roles, tmp_path, untrained, folds=3, seed=0, seconds=None)
    assert again is not None
    assert torch.equal(again, scores)
    assert len(models) == 3  # the table was read from its file


def test_the_clamped_stage_descends_from_the_given_scores() -> None:
    data = prepared()
    corpus, model = data.corpora["train"], build(SMALL, data)
    x, target = batch()
    objective = stages(SMALL, len(data.space.roles), data.space.core)[1].objective
    model.eval()  # no dropout: two calls give the same features
    own = torch.zeros(len(corpus.encoded.arcs), len(data.space.roles))
    arc = corpus.padded(torch.arange(len(own)), target.sentence, x.mask)
    own[arc[x.mask]] = model.features(x).scores[x.mask].detach()
    torch.testing.assert_close(CrossFitted(objective, corpus, own)(model, x, target), objective(model, x, target))
    loss = CrossFitted(objective, corpus, torch.zeros_like(own))(model, x, target)
    assert not torch.isclose(loss, objective(model, x, target))
    loss.backward()
    assert model.features.roles.weight.grad is None  # F(x) supplies no scores
    assert model.energy.energy.energy.parts["label_histogram"].network.last.weight.grad.abs().sum() > 0


def trained(recipe: SrlRecipe, out: Path, seconds: float | None = None) -> spen.SPEN | None:
    return train(recipe, prepared(), out, seconds=seconds, progress=False)


def test_training_takes_the_scores_of_the_folds_and_resumes(tmp_path: Path) -> None:
    recipe = replace(SMALL, cross_fit=2)
    assert trained(recipe, tmp_path / "a", seconds=0.01) is None
    model = trained(recipe, tmp_path / "a")
    assert model is not None
    table = load_weights(tmp_path / "a" / "cross-fit" / "scores.safetensors")["scores"]
    assert table.shape[1] == len(prepared().space.roles)
    assert [path.name for path in (tmp_path / "a" / "cross-fit").iterdir()] == ["scores.safetensors"]
    plain = trained(SMALL, tmp_path / "b")
    assert plain is not None
    name = "energy.energy.energy.parts.label_histogram.network.last.weight"
    assert not torch.equal(model.state_dict()[name], plain.state_dict()[name])
