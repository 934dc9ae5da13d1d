"""What the exported role labeller takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spen.export.predictor import check_shapes, named_inputs
from spen.models import open_model
from spen.tasks.srl.build import build
from spen.tasks.srl.exporting import SHAPES, random_batch
from spen.tasks.srl.local import span_means
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import RECIPES
from tests.tasks.srl.small import batch, prepared


def test_random_batches_are_like_real_ones() -> None:
    """Types, shapes, ranges and padding, so that what is traced on one holds for the other."""
    real, _ = batch()
    x = random_batch(prepared().space, *real.mask.shape[:1], real.words.shape[1], *real.mask.shape[1:])
    for name, tensor in named_inputs(x).items():
        like = named_inputs(real)[name]
        assert (tensor.dtype, tensor.shape) == (like.dtype, like.shape), name
    check_shapes(named_inputs(x), SHAPES)
    assert set(SHAPES) == set(named_inputs(x))
    assert not x.mask[~x.predicate_mask].any()
    assert x.mask.any((1, 2)).all()
    assert (~x.mask).any()
    assert (x.spans[x.mask][:, 0] < x.spans[x.mask][:, 1]).all()
    assert x.spans[..., 1].amax((1, 2)).le(x.token_mask.sum(1)).all()
    assert not x.spans[~x.mask].any()
    assert torch.equal(x.conflicts, x.conflicts.transpose(2, 3))
    assert x.conflicts.any()
    assert span_means(torch.rand(*x.words.shape, 3), x.spans).isfinite().all()
    assert int(x.features.max()) < prepared().space.size
    model = build(RECIPES["spen"], prepared()).eval()
    with torch.no_grad():
        y = model(x).output
    torch.testing.assert_close(y.sum(-1), torch.ones(y.shape[:-1]))


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
