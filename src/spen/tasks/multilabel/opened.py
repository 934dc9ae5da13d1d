"""A trained predictor of label sets: scores on a split, export, and a batch to time strategies on."""

from __future__ import annotations

from typing import Any

import torch

import spen
from spen.export import Exportable
from spen.models import SavedModel
from spen.pretrained import complete, fitting
from spen.tasks.multilabel.data import load
from spen.tasks.multilabel.exporting import exportable
from spen.tasks.multilabel.recipes import MultilabelRecipe, find_recipe
from spen.tasks.multilabel.train import evaluate
from spen.tasks.task import Opened, Progress, Scores

__all__ = ["LabelSetPredictor"]

_SIZES = {"bibtex": (1836, 159), "delicious": (500, 983)}


class LabelSetPredictor(Opened):
    """``model`` is the SPEN; ``inputs`` and ``labels`` are how many there are of each."""

    def __init__(self, name: str, recipe: MultilabelRecipe, model: spen.SPEN, inputs: int, labels: int) -> None:
        self.name, self.recipe, self.model, self.inputs, self.labels = name, recipe, model, inputs, labels

    @classmethod
    def open(cls, saved: SavedModel) -> LabelSetPredictor:
        """The model of a folder."""
        with complete(saved.folder):
            recipe = MultilabelRecipe.from_description(saved.settings["recipe"])
            inputs, labels = saved.settings["inputs"], saved.settings["labels"]
        model = recipe.model(inputs, labels)
        with fitting(saved.folder):
            model.load_state_dict(saved.weights())
        return cls(saved.name, recipe, model.eval(), inputs, labels)

    @classmethod
    def fresh(cls, name: str) -> LabelSetPredictor:
        """A recipe's model with fresh weights, of its data's size."""
        recipe = find_recipe(name)
        inputs, labels = _SIZES[recipe.data]
        return cls(name, recipe, recipe.model(inputs, labels), inputs, labels)

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        if split == "train":
            raise ValueError("label sets are scored on dev or test: the threshold is tuned on dev")
        splits = load(data or self.recipe.data, dev=self.recipe.dev)
        if (splits.train.x.shape[1], splits.train.y.shape[1]) != (self.inputs, self.labels):
            wide = f"{splits.train.x.shape[1]} inputs and {splits.train.y.shape[1]} labels"
            raise ValueError(f"{self.name} was trained on other data: its weights do not fit {wide}")
        assert self.model is not None
        result = evaluate(self.recipe, self.model, splits)
        reached = (result.dev if split == "dev" else result.test)._asdict()
        count, name = len(getattr(splits, split)), data or self.recipe.data
        lines = [f"{self.name} on {count} {split} examples of {name}, threshold {result.threshold:.2f}"]
        lines += [f"  {label:8s} F1 {value:6.2f}" for label, value in reached.items()]
        return Scores({"data": name, "examples": count, "threshold": result.threshold, "f1": reached}, tuple(lines))

    def exportable(self) -> Exportable:
        assert self.model is not None
        return exportable(self.recipe, self.model, self.inputs)

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if self.recipe.way.startswith("feedforward"):
            way = "name a model with an energy, bibtex-end-to-end say"
            raise ValueError(f"{self.name} has no descent to differentiate; {way}")
        return (torch.rand(size or self.recipe.batch_size, self.inputs) < 0.04).float()
