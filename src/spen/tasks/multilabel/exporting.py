"""Label sets for export: documents go in, the probability of every label comes out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import spen
from spen.export import BATCH, Exportable
from spen.objectives import Feedforward, InferenceNetwork
from spen.pretrained import is_pretrained, read_config
from spen.tasks.multilabel.recipes import MultilabelRecipe
from spen.training import Run

__all__ = ["exportable"]


def exportable(name: str) -> Exportable:
    """A run folder or a saved model, ready to be exported."""
    recipe, model, inputs = _saved(name) if is_pretrained(name) else _run(name)

    def example(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        batch = (3, 5, 1)[seed % 3]
        return (torch.rand(batch, inputs, generator=generator) < 0.1).float()

    predicts_at_once = isinstance(recipe.stages()[-1].objective, Feedforward | InferenceNetwork)
    shape = "(batch, labels, 2): absent, present" if recipe.pairs else "(batch, labels): the probability of every label"
    return Exportable(
        model=model,
        example=example,
        shapes={"x": (BATCH,)},
        descend=not predicts_at_once,
        metadata={"task": "multilabel", "recipe": recipe.name, "y": shape},
    )


def _saved(folder: str) -> tuple[MultilabelRecipe, spen.SPEN, int]:
    settings = read_config(folder)["settings"]
    recipe = MultilabelRecipe.from_description(settings["recipe"])
    return recipe, spen.SPEN.from_pretrained(folder), settings["inputs"]


def _run(folder: str) -> tuple[MultilabelRecipe, spen.SPEN, int]:
    """The data need not be here: the weights say how many inputs and labels there are."""
    run = Run.open(Path(folder))
    recipe = MultilabelRecipe.from_description(run.description()["recipe"])
    weights = run.load()
    layers = [key.split(".")[2] for key in weights if key.startswith("features.body.") and key.endswith(".weight")]
    inputs = weights[f"features.body.{min(layers, key=int)}.weight"].shape[1]
    labels = weights["features.head.weight"].shape[0]
    model = recipe.model(inputs, labels)
    model.load_state_dict(weights)
    return recipe, model, inputs
