"""Train one recipe on prepared data into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

import spen
from spen.tasks.srl.arcs import ArcSource
from spen.tasks.srl.build import build, stages
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.metrics import RoleF1
from spen.tasks.srl.recipes import SrlRecipe
from spen.training import Run, fit, save_weights
from spen.training.processes import is_main_process


def train(
    recipe: SrlRecipe,
    data: Prepared,
    out: Path | str,
    *,
    seed: int = 0,
    base: Path | str | None = None,
    accelerator: str = "cpu",
    **fit_options: Any,
) -> spen.SPEN | None:
    """Run the recipe's stages; None when the `seconds` of `fit_options` ran out first (call again to resume).

    `base` is the finished run of the recipe's base system with the same seed. Its F(x) replaces the pretraining, which
    would give the same weights.
    """
    model = build(recipe, data, seed=seed)
    plan = stages(recipe, len(data.space.roles), data.space.core)
    described = {"task": "srl", "data": data.name, **recipe.describe()}
    if base is not None and len(plan) > 1 and is_main_process():
        _adopt(Run.begin(out, described, seed), model, Run.open(base).load())
    train_source, dev_source = sources(recipe, data, seed)
    done = fit(
        model,
        plan,
        train_source,
        dev_source,
        RoleF1(data.space.core, missed=dev_source.missed),
        out=out,
        seed=seed,
        recipe=described,
        accelerator=accelerator,
        # A batch without overlapping candidates has no gradient in the overlap term; that is not a dead term.
        vitals_every=0,
        # The state of a run takes hundreds of megabytes, and an epoch on a GPU one second.
        state_every=60.0,
        **fit_options,
    )
    return model.to(data.device) if done.complete else None


def sources(recipe: SrlRecipe, data: Prepared, seed: int) -> tuple[ArcSource, ArcSource]:
    """Training batches and development batches."""
    train = ArcSource(data.corpora["train"], cells=recipe.cells, seed=seed)
    return train, ArcSource(data.corpora["dev"], cells=max(16_384, recipe.cells), shuffle=False)


def _adopt(run: Run, model: spen.SPEN, weights: dict[str, Tensor]) -> None:
    """Mark the first stage as done, with these weights of F as its result."""
    if run.finished(0).exists():
        return
    features = {name: value for name, value in weights.items() if name.startswith("features.")}
    missing, unexpected = model.load_state_dict(features, strict=False)
    if unexpected or any(name.startswith("features.") for name in missing):
        raise ValueError(f"the base run has another F(x) than {run.folder.name}: train it with the same templates")
    save_weights(model.state_dict(), run.best(0))
    run.finished(0).touch()
