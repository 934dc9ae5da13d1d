"""Label sets for export: documents go in, the probability of every label comes out."""

from __future__ import annotations

import torch
from torch import Tensor

import spen
from spen.export import BATCH, Exportable
from spen.objectives import Feedforward, InferenceNetwork
from spen.tasks.multilabel.recipes import MultilabelRecipe

__all__ = ["exportable"]


def exportable(recipe: MultilabelRecipe, model: spen.SPEN, inputs: int) -> Exportable:
    """A trained model, ready to be exported."""

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
