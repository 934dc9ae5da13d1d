"""Semantic role labelling: Table 2 of the paper. Imports no torch until something is trained or opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spen.tasks.srl.recipes import ABLATIONS, RECIPES, Figures, SrlRecipe, changed, find_recipe
from spen.tasks.task import (
    Command,
    Dataset,
    Listed,
    Opened,
    Option,
    Reproduced,
    ReproduceOrder,
    Task,
    Trained,
    TrainOrder,
)

if TYPE_CHECKING:
    from spen.model import SPEN
    from spen.models import SavedModel

_DATASETS = (
    Dataset("builtin", "sentences from a grammar, with trees and roles"),
    Dataset(
        "ewt",
        "English Web Treebank with PropBank's roles",
        "srl/ewt",
        "spen data fetch ewt, then spen data make ewt",
        licence="CC BY-SA 4.0",
        fetch="spen.tasks.srl.obtain:fetch",
        make="spen.tasks.srl.obtain:make",
    ),
    Dataset(
        "conll2005",
        "the paper's corpus: needs the shared task's release and the Penn Treebank",
        "srl/conll2005",
        "unpack the shared task's release there, then spen data make conll2005 --source THERE --ptb TREEBANK",
        make="spen.tasks.srl.obtain:make_conll2005",
        make_options=(Option("ptb", Path, "The folder of the Penn Treebank."),),
    ),
)


class RoleLabelling(Task):
    """Parsed sentences in, roles out."""

    name = "srl"
    unit = "the paper's test F1"
    table = "table2"
    tab = "spen.tasks.srl.tab:RolesTab"
    options = {
        "predict": (
            Option("style", Literal["props", "json", "pretty"], "Output format; props if not given.", "--format"),
        ),
        "reproduce": (
            Option("genre", str, "Leave this genre out of training and test on it."),
            Option("sentences", int, "Train on the first N sentences.", least=1),
        ),
    }
    commands = (
        Command(
            "score",
            "spen.tasks.srl.commands:score",
            (
                "spen score gold.props.gz pred.props",
                "spen score gold.props.gz pred.props --json",
                "spen score gold.props.gz pred.props --compare other.props",
            ),
        ),
    )
    examples = {
        "train": ("spen train srl/spen --data builtin --seconds 600",),
        "evaluate": ("spen evaluate runs/builtin/spen/seed-0",),
        "predict": (
            "spen predict srl-ewt sentences.conllu -o roles.props",
            "spen predict runs/builtin/spen/seed-0 sentences.conllu --format pretty",
        ),
        "reproduce": (
            "spen reproduce table2 --quick --rows local,spen",
            "spen reproduce table2 --data ewt --genre weblog --seconds 3600",
        ),
        "fetch": ("spen data fetch ewt",),
        "make": (
            "spen data make ewt",
            "spen data make conll2005 --source conll05st-release --ptb treebank_3/parsed/mrg/wsj",
        ),
    }

    recipes = {name: Listed(name, r.about, r.paper.get("ad3", Figures()).test) for name, r in RECIPES.items()}
    datasets = {d.name: d for d in _DATASETS}

    def has_recipe(self, name: str) -> bool:
        return name.partition(":")[0] in RECIPES | ABLATIONS

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        _recipe(recipe, settings)
        from spen.tasks.srl.formats.folder import find_splits, locate

        if (folder := locate(data)) is not None:
            find_splits(folder)

    def train(self, order: TrainOrder) -> Trained | None:
        from spen.tasks.options import resolve_device
        from spen.tasks.srl.corpora import open_corpus, prepare
        from spen.tasks.srl.train import train
        from spen.training import Run
        from spen.training.processes import devices_and_nodes

        recipe, device = _recipe(order.recipe, order.settings), resolve_device(order.device)
        name, splits, vectors = open_corpus(order.data)
        # With several devices the data stays on the CPU, and Lightning moves each batch to its device.
        place = device if devices_and_nodes(order.devices, order.nodes) == (1, 1) else "cpu"
        data = prepare(splits, name=name, templates=recipe.templates, vectors=vectors, device=place)
        if train(recipe, data, order.out, **order.fit_options) is None:
            return None
        return Trained("F1", max((e["dev"] for e in Run.open(order.out).metrics() if "dev" in e), default=None))

    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        from spen.tasks.srl.predict import Labeller

        return Labeller.open(saved, device=device)

    def fresh(self, recipe: str) -> Opened:
        from spen.tasks.srl.predict import Labeller

        return Labeller.fresh(recipe)

    def rebuild(self, **settings: Any) -> SPEN:
        from spen.tasks.srl.build import rebuild

        return rebuild(**settings)

    def reproduce(self, order: ReproduceOrder) -> Reproduced:
        rows = [x for row in order.rows or RECIPES for x in (ABLATIONS if row == "ablation" else (row,)) if x != "none"]
        if unknown := [key for key in order.settings if ":" in key and key.rpartition(":")[0] not in rows]:
            raise ValueError(f"no row among {', '.join(rows)} takes the option {unknown[0]!r}")
        changed_rows = tuple(changed_row(row, order.settings) for row in rows)
        for row in changed_rows:
            find_recipe(row)
        from spen.tasks.srl.reproduce import reproduce

        return reproduce(replace(order, rows=changed_rows))


def changed_row(row: str, settings: Mapping[str, str]) -> str:
    """A row with the settings of every row (``KEY``) and its own (``ROW:KEY``)."""
    mine = {key.rpartition(":")[2]: value for key, value in settings.items() if key.rpartition(":")[0] in ("", row)}
    return ":".join([row, *(f"{key}={value}" for key, value in mine.items())])


def _recipe(name: str, settings: Mapping[str, str]) -> SrlRecipe:
    recipe = find_recipe(name)
    return changed(recipe, [f"{key}={value}" for key, value in settings.items()]) if settings else recipe


TASK = RoleLabelling()
