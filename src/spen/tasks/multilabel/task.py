"""Label sets: a vector in, the set of its labels out. Imports no torch until something is trained or opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spen.tasks.multilabel.recipes import RECIPES, WAYS, MultilabelRecipe, find_recipe, parse_targets
from spen.tasks.task import Command, Dataset, Listed, Opened, Option, Task, Trained, TrainOrder

if TYPE_CHECKING:
    from spen.model import SPEN
    from spen.models import SavedModel

DATASETS: dict[str, tuple[str, int | None]] = {
    "bibtex": ("159 tags of 7,395 publications", None),
    "delicious": ("983 tags of 16,105 web pages", None),
    "birds": ("species in recordings", 40588),
    "emotions": ("moods of songs", 40589),
    "enron": ("topics of e-mails", 40590),
    "genbase": ("families of proteins", 40591),
    "langlog": ("topics of articles on language", 40593),
    "reuters": ("topics of news", 40594),
    "scene": ("kinds of scenery", 40595),
    "slashdot": ("topics of articles", 40596),
    "yeast": ("functions of genes", 40597),
}
"""(What it holds, its number at OpenML). Those without a number are MULAN's."""


class LabelSetsTask(Task):
    """Vectors in, sets of labels out."""

    name = "multilabel"
    unit = "published test F1"
    commands = (
        Command(
            "compare",
            "spen.tasks.multilabel.commands:compare",
            (
                "spen compare bibtex --seeds 3",
                "spen compare mine-train.arff --ways end-to-end,deep-value --seconds 60",
                "spen compare mine.npz --ways feedforward,end-to-end --updates 200 --json",
            ),
        ),
    )
    options = {
        "train": (Option("targets", str, "Label columns, separated by commas, or the XML file of MULAN."),),
    }
    examples = {
        "train": ("spen train labels --data songs.csv --targets happy,calm", "spen train bibtex-end-to-end --json"),
        "evaluate": ("spen evaluate runs/songs/labels/seed-0", "spen evaluate runs/bibtex/bibtex-end-to-end/seed-0"),
        "predict": ("spen predict runs/songs/labels/seed-0 new-songs.csv -o labels.csv",),
        "bench": ("spen bench bibtex-end-to-end --batch 4 --json",),
    }

    recipes = {
        name: Listed(name, f"{recipe.data or 'a table of yours'}: {WAYS[recipe.way].about}", recipe.published)
        for name, recipe in RECIPES.items()
    }
    datasets = {
        name: Dataset(
            name,
            about,
            f"multilabel/{name}.npz",
            obtain=f"`spen data fetch {name}`",
            fetch=f"spen.tasks.multilabel.download:{name}",
        )
        for name, (about, _) in DATASETS.items()
    }

    def default_data(self, recipe: str) -> str:
        return find_recipe(recipe).data

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        find_recipe(recipe).with_options(**settings)
        if not data:
            raise ValueError(f"{recipe} learns from a table of yours: give --data FILE and --targets with its labels")

    def train(self, order: TrainOrder) -> Trained | None:
        from spen.tasks.multilabel.data import locate
        from spen.tasks.multilabel.train import train

        data = str(locate(order.data)) if order.data not in self.datasets else order.data  # from any folder
        recipe = find_recipe(order.recipe).with_options(**order.settings)
        recipe = replace(recipe, data=data, targets=parse_targets(order.options.get("targets", "")))
        done = train(recipe, order.out, **order.fit_options)
        return None if done is None else Trained("example F1", done[1].dev.example)

    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        from spen.tasks.multilabel.opened import LabelSetPredictor

        return LabelSetPredictor.open(saved, device)

    def fresh(self, recipe: str) -> Opened:
        from spen.tasks.multilabel.opened import LabelSetPredictor

        return LabelSetPredictor.fresh(recipe)

    def rebuild(self, **settings: Any) -> SPEN:
        from spen.tasks.multilabel.build import build_model
        from spen.tasks.multilabel.tables import Schema

        recipe = MultilabelRecipe.from_description(settings["recipe"])
        return build_model(recipe, Schema(**settings["schema"]), settings["threshold"])


TASK = LabelSetsTask()
