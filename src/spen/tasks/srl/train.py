"""Train one recipe on prepared data into a run folder."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

import spen
from spen.tasks.srl.build import build, dev_metric, sources, stages
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.recipes import SrlRecipe
from spen.training import Run, fit, save_weights
from spen.training.processes import is_main_process

__all__ = ["train"]


def train(
    recipe: SrlRecipe,
    data: Prepared,
    out: Path | str,
    *,
    seed: int = 0,
    base: Path | str | None = None,
    accelerator: str = "cpu",
    devices: int = 1,
    nodes: int = 1,
    seconds: float | None = None,
    progress: bool | None = None,
) -> spen.SPEN | None:
    """Run the recipe's stages; None when `seconds` ran out first (call again to go on).

    `base` is the finished run of the recipe's base system with the same seed: its F(x) then takes the place of the
    pretraining, which would train the same thing again.
    """
    model = build(recipe, data, seed=seed)
    plan = stages(recipe, len(data.roles), data.core)
    described = {"task": "srl", "data": data.name, **recipe.describe()}
    if base is not None and len(plan) > 1 and is_main_process():
        _adopt(Run.begin(out, described, seed), model, Run.open(base).load())
    train_source, dev_source = sources(recipe, data, seed)
    done = fit(
        model,
        plan,
        train_source,
        dev_source,
        dev_metric(data, dev_source),
        out=out,
        seed=seed,
        recipe=described,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        progress=progress,
        # A batch without overlapping candidates has no slope in the overlap term; that is no dead term.
        vitals_every=0,
        seconds=seconds,
        # A run's state is hundreds of megabytes, an epoch on a GPU takes a second.
        state_every=60.0,
    )
    return model.to(data.device) if done.complete else None


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
