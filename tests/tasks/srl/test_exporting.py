"""What the exported role labeller takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from spen.export.predictor import check_shapes, named_inputs
from spen.models import open_model
from spen.tasks.srl.build import build
from spen.tasks.srl.exporting import SHAPES
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import RECIPES
from tests.tasks.srl.small import prepared


@pytest.mark.parametrize("name", ["srl-grammar", "srl-ewt"])
def test_examples_have_sizes_of_their_own_and_padding(name: str) -> None:
    """What is traced must not hold for one size alone: no size is 1, and no two are equal by chance."""
    thing = open_model(name).exportable()
    traced, other = (thing.example(seed) for seed in (0, 1))
    assert set(SHAPES) == set(named_inputs(traced))
    check_shapes(named_inputs(traced), SHAPES)
    sizes = {*traced.mask.shape, traced.words.shape[1]}
    assert len(sizes) == 4
    assert min(sizes) > 1
    assert traced.mask.shape != other.mask.shape
    for x in (traced, other):
        assert x.mask.any((1, 2)).all()
        assert not x.mask.all()
        assert x.conflicts.any()


def test_the_shipped_labeller_says_what_its_numbers_mean() -> None:
    thing = open_model("srl-grammar").exportable()
    assert thing.descend
    assert thing.metadata["task"] == "srl"
    assert '"A0", "A1"' in thing.metadata["roles"]


def test_a_recurrent_encoder_is_refused(tmp_path: Path) -> None:
    recipe = next(r for r in RECIPES.values() if r.encoder == "contextual")
    data = prepared(recipe.templates)
    build(recipe, data).save_pretrained(tmp_path)
    assert Labeller.open(tmp_path).recipe.encoder == "contextual"
    with pytest.raises(ValueError, match="its features come from a recurrent encoder that reads every sentence to its"):
        open_model(tmp_path).exportable()
