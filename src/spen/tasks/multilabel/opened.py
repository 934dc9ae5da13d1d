"""A trained predictor of label sets: labels for tables, scores on a split, export, a batch to time strategies on."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spen
from spen.export import BATCH, Exportable
from spen.models import SavedModel
from spen.objectives import Feedforward, InferenceNetwork
from spen.pretrained import complete, fitting
from spen.storage import replacing
from spen.tasks.multilabel.build import build_model, build_stages
from spen.tasks.multilabel.data import load, locate, read_parts, read_table, split_test
from spen.tasks.multilabel.features import Standardize
from spen.tasks.multilabel.metrics import scores
from spen.tasks.multilabel.recipes import MultilabelRecipe, find_recipe
from spen.tasks.multilabel.tables import Schema, Table
from spen.tasks.multilabel.train import predict
from spen.tasks.simple import answer_files
from spen.tasks.task import Opened, Progress, Scores

_SIZES = {"bibtex": (1836, 159), "delicious": (500, 983), "": (100, 10)}


class LabelSetPredictor(Opened):
    """``schema`` says how ``model`` reads a table; a label is present if its probability is above ``threshold``."""

    model: spen.SPEN

    def __init__(
        self,
        name: str,
        recipe: MultilabelRecipe,
        model: spen.SPEN,
        schema: Schema,
        threshold: float = 0.5,
        device: str = "cpu",
    ) -> None:
        self.name, self.recipe, self.schema, self.threshold, self.device = name, recipe, schema, threshold, device
        self.model = model.to(device)
        self.objective = build_stages(recipe)[-1].objective

    @classmethod
    def open(cls, saved: SavedModel, device: str) -> LabelSetPredictor:
        """The model of a folder."""
        with complete(saved.folder):
            recipe = MultilabelRecipe.from_description(saved.settings["recipe"])
            schema, threshold = Schema(**saved.settings["schema"]), float(saved.settings["threshold"])
        model = build_model(recipe, schema, threshold)
        with fitting(saved.folder):
            model.load_state_dict(saved.weights())
        return cls(saved.name, recipe, model.eval(), schema, threshold, device)

    @classmethod
    def fresh(cls, name: str) -> LabelSetPredictor:
        """The untrained model of a recipe, for the size of its data."""
        recipe = find_recipe(name)
        schema = Schema.numbered(*_SIZES[recipe.data])
        return cls(name, recipe, build_model(recipe, schema), schema)

    def probabilities(self, x: Tensor) -> Tensor:  # (N, inputs) -> (N, labels)
        """The probability of every label."""
        return predict(self.model, self.objective, x.to(self.device)).cpu()

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        name, targets = data or self.recipe.data, tuple(self.schema.targets) if self.recipe.targets else ()
        if not data and not locate(name).exists():
            raise ValueError(f"{name}, which {self.name} was trained on, is not here: give --data with its new place")
        tables = read_parts(name, targets)
        changed = len(tables) == 1 and not self._learned_from(tables[0])
        if changed and not data:
            raise ValueError(
                f"{name} has changed since {self.name} was trained, so its test rows are not known; "
                f"score all of its rows with --data {shlex.quote(name)}, or train again"
            )
        if changed:
            part, which = self.schema.label_sets(tables[0]), ""  # every row of another table
        else:
            splits = load(name, targets, dev=self.recipe.dev, schema=self.schema)
            part, which = getattr(splits, split), f"{split} "
        reached = scores(self.probabilities(part.x), part.y, self.threshold)._asdict()
        lines = [f"{self.name} on {len(part)} {which}examples of {name}, threshold {self.threshold:.2g}"]
        lines += [f"  {label:8s} F1 {value:6.2f}" for label, value in reached.items()]
        values = {"data": name, "examples": len(part), "threshold": self.threshold, "f1": reached}
        return Scores(values, tuple(lines))

    def _learned_from(self, table: Table) -> bool:
        """Whether it is the training table, at any path: the means of its training rows are the same."""
        try:
            own = Schema.of(split_test(table)[0])
        except ValueError:  # too few rows, or a column without values
            return False
        return json.dumps(own.describe()) == json.dumps(self.schema.describe())

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        """A CSV for each table: a column of 0 and 1 for each label, then one of its probability."""
        if out is None and len(inputs) == 1 and inputs[0].is_file():
            self._write(inputs[0], sys.stdout)
            return
        for path, target in answer_files(inputs, out, ".csv"):
            with replacing(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
                self._write(path, file)
            yield target

    def _write(self, path: Path, file: Any) -> None:
        y = self.probabilities(self.schema.x(read_table(path)))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*self.schema.targets, *(f"{name} probability" for name in self.schema.targets)])
        for row in y.tolist():
            writer.writerow([*(int(p > self.threshold) for p in row), *(f"{p:.6f}" for p in row)])

    def exportable(self) -> Exportable:
        def example(seed: int) -> Tensor:
            return self._like_training((3, 5, 1)[seed % 3], torch.Generator().manual_seed(seed))

        inputs = self.schema.named()
        shape = "absent, present" if self.recipe.pairs else "the probability of every label"
        return Exportable(
            model=self.model,
            example=example,
            shapes={"x": (BATCH,)},
            descend=not isinstance(self.objective, Feedforward | InferenceNetwork),
            metadata={
                "task": "multilabel",
                "recipe": self.recipe.name,
                "inputs": json.dumps(list(inputs)),
                "missing": json.dumps(list(inputs.values())),
                "labels": json.dumps(self.schema.targets),
                "threshold": str(self.threshold),
                "y": f"{tuple(self.schema.targets)}: {shape}",
            },
        )

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if self.recipe.way.startswith("feedforward"):
            raise ValueError(
                f"{self.name} has no descent to differentiate; name a model with an energy, bibtex-end-to-end say"
            )
        return self._like_training(size or self.recipe.batch_size)

    def _like_training(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """Random inputs with the moments of the training inputs; sparse ones if the model does not standardise."""
        for part in self.model.modules():
            if isinstance(part, Standardize):
                noise = torch.randn(rows, self.schema.width, generator=generator)
                return part.mean.cpu() + part.deviation.cpu() * noise
        return (torch.rand(rows, self.schema.width, generator=generator) < 0.1).float()
