"""Train a recipe, tune the threshold on development data, score the test data once."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spen.builders import Origin
from spen.model import SPEN
from spen.pretrained import write_config
from spen.protocols import Objective
from spen.storage import write_json
from spen.tasks.multilabel.build import build_model, build_stages
from spen.tasks.multilabel.data import Splits, load
from spen.tasks.multilabel.features import Standardize
from spen.tasks.multilabel.metrics import Scores, TunedExampleF1, scores, tune_threshold
from spen.tasks.multilabel.recipes import MultilabelRecipe
from spen.tasks.multilabel.tables import Schema
from spen.training import TensorSource, fit
from spen.training.processes import is_main_process


@dataclass(frozen=True)
class Result:
    """F1 of a trained recipe in percent, the threshold, and the seconds of training."""

    recipe: str
    seed: int
    threshold: float
    dev: Scores
    test: Scores
    seconds: float
    steps_used: float


def train(
    recipe: MultilabelRecipe,
    out: Path | str,
    *,
    splits: Splits | None = None,
    seed: int = 0,
    accelerator: str = "cpu",
    **fit_options: Any,
) -> tuple[SPEN, Result] | None:
    """Train into the run folder ``out``, with a ``result.json``. The test part is scored once, at the end.

    None if the ``seconds`` of ``fit_options`` ran out before the end: the same call resumes.
    """
    splits = load(recipe.data, recipe.targets, dev=recipe.dev) if splits is None else splits
    torch.manual_seed(seed)
    model = fresh_model(recipe, splits)
    began = time.monotonic()
    run = fit(
        model,
        build_stages(recipe),
        *sources(recipe, splits, seed),
        TunedExampleF1(),
        out=out,
        seed=seed,
        recipe=recipe.describe(),
        accelerator=accelerator,
        vitals_every=0,
        **fit_options,
    )
    if not run.complete:
        return None
    result = evaluate(recipe, model, splits, seed=seed, seconds=time.monotonic() - began)
    settings = {**model.origin.plain(), "threshold": result.threshold} if model.origin else {}
    model.origin = Origin("multilabel", settings)
    if is_main_process():
        plain = {**asdict(result), "dev": result.dev._asdict(), "test": result.test._asdict()}
        write_json(Path(out) / "result.json", plain, indent=2)
        write_config(Path(out), model.origin)
    return model, result


def fresh_model(recipe: MultilabelRecipe, splits: Splits) -> SPEN:
    """An untrained model for these examples, with the moments of their inputs."""
    x, y = splits.train.x, splits.train.y
    model = build_model(recipe, splits.schema or Schema.numbered(x.shape[1], y.shape[1]))
    for module in model.modules():
        if isinstance(module, Standardize):
            module.measure(x.double().mean(0), x.double().var(0, correction=0))
    return model


def sources(recipe: MultilabelRecipe, splits: Splits, seed: int) -> tuple[TensorSource, TensorSource]:
    """Training and development data for ``fit``."""
    train = TensorSource(splits.train.x, splits.train.y, recipe.batch_size, seed=seed)
    return train, TensorSource(splits.dev.x, splits.dev.y, 1024, shuffle=False)


def evaluate(recipe: MultilabelRecipe, model: SPEN, splits: Splits, *, seed: int = 0, seconds: float = 0.0) -> Result:
    """Tune the threshold on the development part, and score both parts at it."""
    objective = build_stages(recipe)[-1].objective
    on_dev, on_test = (predict(model, objective, part.x) for part in (splits.dev, splits.test))
    threshold = tune_threshold(on_dev, splits.dev.y)
    with torch.no_grad():
        used = model(splits.dev.x[:256]).steps_used.double().mean()
    return Result(
        recipe=recipe.name,
        seed=seed,
        threshold=threshold,
        dev=scores(on_dev, splits.dev.y, threshold),
        test=scores(on_test, splits.test.y, threshold),
        seconds=round(seconds, 1),
        steps_used=0.0 if recipe.way.startswith("feedforward") else float(used),
    )


def predict(model: SPEN, objective: Objective, x: Tensor, batch_size: int = 1024) -> Tensor:
    """The probability that each label is present (N, L), as the objective predicts."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = [objective.predict(model, x) for x in x.split(batch_size)]
    model.train(was_training)
    y = torch.cat(parts)
    return y[..., 1] if y.dim() == 3 else y
