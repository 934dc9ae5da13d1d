"""One energy, one data set, many ways to learn it, equal budgets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from spen.model import SPEN
from spen.protocols import Objective
from spen.storage import noted, write_json
from spen.tasks.multilabel.build import build_stages
from spen.tasks.multilabel.data import Splits, load
from spen.tasks.multilabel.metrics import Scores, TunedExampleF1
from spen.tasks.multilabel.recipes import RECIPES, WAYS, MultilabelRecipe
from spen.tasks.multilabel.train import evaluate, fresh_model, sources
from spen.training import fit, load_weights
from spen.training.fingerprint import describe


@dataclass(frozen=True)
class Attempt:
    """One way with one seed. ``curve`` holds (seconds, development F1) after each epoch, pretraining not counted."""

    way: str
    seed: int
    threshold: float | None = None
    dev: Scores | None = None
    test: Scores | None = None
    seconds: float | None = None
    kept_mib: float | None = None
    """MiB that autograd keeps for the backward pass of one batch."""
    steps_used: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)
    problem: str | None = None
    """The error that ended it."""


def compare(
    recipe: MultilabelRecipe,
    out: Path | str,
    *,
    ways: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    seconds: float | None = None,
    updates: int | None = None,
    splits: Splits | None = None,
    progress: bool | None = None,
) -> list[Attempt]:
    """Train the energy of ``recipe`` in every way from one pretrained F a seed; write ``results.json`` and a table.

    The budget after pretraining is ``seconds`` or parameter ``updates``, the same for all (default: the recipe's
    epochs). The best epoch on development data counts; test data is scored once, at the end. Attempts that are
    already in ``out`` are read from there; a folder with attempts of another recipe, budget or data set is refused.
    """
    chosen = list(WAYS) if ways is None else list(ways)
    unknown = [way for way in chosen if way not in WAYS]
    if unknown:
        raise ValueError(f"there is no way {', '.join(unknown)} to learn an energy; choose from {', '.join(WAYS)}")
    if seconds is not None and updates is not None:
        raise ValueError("give a budget in seconds or in updates, not in both")
    folder = Path(out)
    splits = load(recipe.data, recipe.targets, dev=recipe.dev) if splits is None else splits
    _begin(folder, recipe, splits, seconds, updates)
    attempts = []
    for seed in seeds:
        pretrained = _pretrained(recipe, folder / f"seed-{seed}", splits, seed, progress)
        for way in chosen:
            place = folder / f"seed-{seed}" / way
            if not (place / "attempt.json").exists():
                attempt = _attempt(recipe, way, place, splits, pretrained, seed, seconds, updates, progress)
                write_json(place / "attempt.json", asdict(attempt))
            attempts.append(read_attempt(place / "attempt.json"))
            write_json(folder / "results.json", [asdict(a) for a in attempts])
    (folder / "table.md").write_text(table(attempts), encoding="utf-8")
    return attempts


def changed(recipe: MultilabelRecipe, way: str) -> MultilabelRecipe:
    """The recipe with another way, and the domain that this way needs."""
    known = RECIPES.get(f"bibtex-{way}")
    return replace(recipe, name=f"{recipe.data}-{way}", way=way, domain=known.domain if known else recipe.domain)


def table(attempts: Sequence[Attempt]) -> str:
    """Markdown: mean ± deviation over seeds of test F1, and the costs."""
    lines = [
        "| objective | example F1 | micro F1 | macro F1 | dev F1 | seconds | kept MiB | steps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way in dict.fromkeys(a.way for a in attempts):
        runs = [a for a in attempts if a.way == way]
        done = [a for a in runs if a.problem is None]
        if not done:
            lines.append(f"| {way} | {runs[0].problem} | | | | | | |")
            continue
        cells = [_spread([getattr(a.test, name) for a in done]) for name in Scores._fields]
        cells += [_spread([a.dev.example for a in done if a.dev])]
        cells += [f"{mean(getattr(a, k) for a in done):.1f}" for k in ("seconds", "kept_mib", "steps_used")]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(attempts: Sequence[Attempt], path: Path | str) -> None:
    """Development F1 against seconds of training, one line a way (its first seed)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for number, way in enumerate(dict.fromkeys(a.way for a in attempts)):
        run = next(a for a in attempts if a.way == way)
        if run.curve:
            style = "-" if number < 10 else "--"
            axes.plot(*zip(*run.curve, strict=True), style, marker=".", label=way)
    axes.set_xlabel("seconds of training after the common pretraining")
    axes.set_ylabel("example-averaged F1 on development data")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def kept_for_backward(model: SPEN, objective: Objective, x: Tensor, target: Tensor) -> float:
    """MiB of distinct tensors that one forward pass leaves for the backward pass, parameters not counted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective(model, x, target)
    return sum(sizes.values()) / 2**20


def read_attempt(path: Path) -> Attempt:
    """An attempt that ``compare`` wrote."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    scores = {part: Scores(*values[part]) for part in ("dev", "test") if values[part] is not None}
    return Attempt(**{**values, **scores, "curve": [(a, b) for a, b in values["curve"]]})


def _begin(folder: Path, recipe: MultilabelRecipe, splits: Splits, seconds: float | None, updates: int | None) -> None:
    """Write recipe, budget and data set into the folder; refuse a folder that has others."""
    budget = {"seconds": seconds, "updates": updates}
    examples = describe([[part.x, part.y, part.labels] for part in (splits.train, splits.dev, splits.test)])
    asked = {"recipe": _base(recipe).describe(), "budget": budget, "data set": examples}
    path = folder / "asked.json"
    known: dict[str, Any] = {}
    if path.exists() or not any(folder.glob("seed-*")):  # else the budget of the attempts is not known
        known, asked = noted(path, asked)
    other = [key for key, value in asked.items() if known.get(key) != value]
    if other:
        raise ValueError(
            f"{folder} holds a comparison of another {' or '.join(other)}; give another folder, "
            "or delete it to start anew"
        )


def _base(recipe: MultilabelRecipe) -> MultilabelRecipe:
    return replace(recipe, way="end-to-end", name=f"{recipe.data}-pretraining")


def _pretrained(
    recipe: MultilabelRecipe, folder: Path, splits: Splits, seed: int, progress: bool | None
) -> dict[str, Tensor]:
    base = _base(recipe)
    torch.manual_seed(seed)
    model = fresh_model(base, splits)
    train, dev = sources(base, splits, seed)
    options = _options(base, seed, progress)
    fit(model, build_stages(base)[:1], train, dev, TunedExampleF1(), **options, out=folder / "pretraining")
    return {name: value for name, value in model.state_dict().items() if name.startswith("features.")}


def _attempt(
    recipe: MultilabelRecipe,
    way: str,
    folder: Path,
    splits: Splits,
    pretrained: dict[str, Tensor],
    seed: int,
    seconds: float | None,
    updates: int | None,
    progress: bool | None,
) -> Attempt:
    own = replace(changed(recipe, way), pretrain_epochs=0, clamped_epochs=0)
    train, dev = sources(own, splits, seed)
    epochs = 10**6 if seconds is not None else own.epochs if updates is None else -(-updates // train.count())
    own = replace(own, epochs=epochs, decay_to=1.0 if seconds is not None else own.decay_to)
    torch.manual_seed(seed)
    model = fresh_model(own, splits)
    model.load_state_dict({**model.state_dict(), **pretrained})
    stages = build_stages(own)
    batch = next(iter(train.batches(0)))
    began = time.monotonic()
    try:
        kept = kept_for_backward(model, stages[0].objective, *batch)
        options = _options(own, seed, progress)
        run = fit(model, stages, train, dev, TunedExampleF1(), **options, out=folder, seconds=seconds)
    except (RuntimeError, ValueError) as error:
        return Attempt(way, seed, problem=str(error).splitlines()[0])
    if not run.complete:  # out of time: the best epoch so far is the result
        model.load_state_dict(load_weights(run.best(0)))
        model.requires_grad_(True)
    result = evaluate(own, model, splits, seed=seed, seconds=time.monotonic() - began)
    curve = [(float(e["seconds"]), float(e["dev"])) for e in run.metrics()]
    return Attempt(way, seed, result.threshold, result.dev, result.test, result.seconds, kept, result.steps_used, curve)


def _options(recipe: MultilabelRecipe, seed: int, progress: bool | None) -> dict[str, Any]:
    return {"seed": seed, "recipe": recipe.describe(), "accelerator": "cpu", "progress": progress, "vitals_every": 0}


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"
