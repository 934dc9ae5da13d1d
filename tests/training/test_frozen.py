"""What ``fit`` leaves as it is: frozen parameters, and parts in eval mode; what it sets: train mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spen
from spen.objectives import squared_error
from spen.training import Run, fit, joint, pretrain
from tests.training import toy


def train(model: spen.SPEN, out: Path, **options: Any) -> Run:
    data, dev = toy.build_data()
    stages = [pretrain(squared_error, epochs=1), joint(squared_error, epochs=1, learning_rate=0.01)]
    return fit(model, stages, data, dev, toy.MSE(), out=out, accelerator="cpu", progress=False, **options)


def test_frozen_parameters_stay_as_they_are(tmp_path: Path) -> None:
    model = toy.build_model()
    model.features[0].requires_grad_(False)  # type: ignore[index]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, tmp_path)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"features.0.weight", "features.0.bias"}
    assert not moved & frozen
    assert "features.3.weight" in moved


def test_another_frozen_part_is_another_run(tmp_path: Path) -> None:
    train(toy.build_model(), tmp_path)
    model = toy.build_model()
    model.features[0].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(ValueError, match=r"features.0.weight: parameter, .* there, parameter, .*, not trained now"):
        train(model, tmp_path)


def test_nothing_to_train_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    model = toy.build_model().requires_grad_(False)
    with pytest.raises(ValueError, match="stage 'pretrain' finds requires_grad=False at every parameter"):
        train(model, tmp_path)
    assert not any(p.requires_grad for p in model.parameters())


def with_norm() -> spen.SPEN:
    model = toy.build_model()
    model.features.insert(0, nn.BatchNorm1d(6))  # type: ignore[operator, union-attr]
    return model


def test_a_model_in_eval_mode_is_trained_in_train_mode(tmp_path: Path) -> None:
    model = with_norm().eval()
    train(model, tmp_path)
    assert int(model.features[0].num_batches_tracked) == 8  # type: ignore[index]


def test_a_part_in_eval_mode_stays_in_it(tmp_path: Path) -> None:
    model = with_norm()
    model.features[0].eval()  # type: ignore[index]
    train(model, tmp_path)
    assert int(model.features[0].num_batches_tracked) == 0  # type: ignore[index]
