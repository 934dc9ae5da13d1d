"""spen train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from spen.cli.catalogue import complete_data, complete_recipe, find_recipe
from spen.cli.options import OUT_OF_TIME, Accelerator, Json, Seconds, check_device, open_roles, parse_settings
from spen.cli.terminal import answer, examples, resumable, working

EXAMPLES = examples(
    "spen train dp-3",
    "spen train dp-3 --set batches=500 --set steps=5 --out runs/five",
    "spen train srl/spen --data builtin --seconds 600",
    "spen train bibtex-end-to-end --json",
)


@dataclass(frozen=True)
class Trained:
    """What a finished run reached on development data; None out of time."""

    measure: str
    dev: float | None


@dataclass(frozen=True)
class Order:
    """What was asked for, whatever the task."""

    recipe: str
    data: str
    out: Path
    seed: int
    devices: int
    accelerator: str
    seconds: float | None
    settings: dict[str, str]


def train(
    recipe: Annotated[str, typer.Argument(help="A name from `spen list`.", autocompletion=complete_recipe)],
    data: Annotated[
        str,
        typer.Option(
            help="A name from `spen data list`, or a path; the task's own if not given.", autocompletion=complete_data
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/DATA/RECIPE/seed-N if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and what training draws; data stay the same.")] = 0,
    devices: Annotated[int, typer.Option(min=1, help="More than one: DDP (denoising).")] = 1,
    accelerator: Annotated[Accelerator, typer.Option(help="Where it trains.")] = "auto",
    seconds: Seconds = None,
    options: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    as_json: Json = False,
) -> None:
    """Train a recipe into a run folder. Interrupted, the same command goes on where it stopped."""
    task, name = find_recipe(recipe, data)
    settings = parse_settings(options or [])
    if devices > 1 and task != "denoising":
        raise ValueError(f"recipes of {task} train on one device, not on {devices}")
    way = {"denoising": _denoising, "srl": _roles, "multilabel": _label_sets}[task]
    where = data or {"denoising": "rooms", "srl": "builtin", "multilabel": name.partition("-")[0]}[task]
    folder = out or Path("runs") / Path(where).stem / name.replace(":", ",") / f"seed-{seed}"
    with resumable(folder):
        result = way(Order(name, where, folder, seed, devices, accelerator, seconds, settings))
    if as_json:
        answer({"run": folder, "finished": result is not None, **(vars(result) if result else {})})
    elif result is None:
        typer.echo(f"time is up; the same command goes on with {folder}")
    else:
        best = "" if result.dev is None else f": best development {result.measure} {result.dev:.2f}"
        typer.echo(f"{folder}{best}")
    raise typer.Exit(OUT_OF_TIME if result is None else 0)


def _denoising(order: Order) -> Trained | None:
    from spen.tasks.denoising.recipes import find_recipe, find_regime

    regime = find_regime(order.data)
    recipe = find_recipe(order.recipe, order.data).with_options(**order.settings)
    check_device(order.accelerator)
    with working("opening the data"):
        from spen.tasks.denoising.experiment import train  # torch comes after the user's mistakes
    run = train(
        recipe,
        regime,
        order.out,
        seed=order.seed,
        accelerator=order.accelerator,
        devices=order.devices,
        seconds=order.seconds,
    )
    if run is None:
        return None
    scores = [e["dev"] for e in run.metrics() if "dev" in e]
    return Trained("PSNR (dB)", max(scores, default=None))


def _roles(order: Order) -> Trained | None:
    from spen.tasks.srl.recipes import changed, find_recipe

    recipe = find_recipe(order.recipe)
    if order.settings:
        recipe = changed(recipe, [f"{key}={value}" for key, value in order.settings.items()])
    check_device(order.accelerator)
    with working("reading sentences and preparing features"):
        import torch

        from spen.tasks.srl.corpora import prepare
        from spen.tasks.srl.training import accelerator_of, train
        from spen.training import Run

        device = "cuda" if order.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        name, splits, vectors = open_roles(order.data)
        data = prepare(splits, name=name, templates=recipe.templates, vectors=vectors, device=device)
    model = train(recipe, data, order.out, seed=order.seed, accelerator=accelerator_of(device), seconds=order.seconds)
    if model is None:
        return None
    scores = [e["dev"] for e in Run.open(order.out).metrics() if "dev" in e]
    return Trained("F1", max(scores, default=None))


def _label_sets(order: Order) -> Trained | None:
    from spen.tasks.multilabel.recipes import find_recipe

    recipe = find_recipe(order.recipe).with_changes(data=order.data).with_options(**order.settings)
    check_device(order.accelerator)
    with working("reading the data"):
        from spen.tasks.multilabel.data import load
        from spen.tasks.multilabel.train import train

        splits = load(recipe.data, dev=recipe.dev)
    done = train(
        recipe, order.out, splits=splits, seed=order.seed, accelerator=order.accelerator, seconds=order.seconds
    )
    return None if done is None else Trained("example F1", done[1].dev.example)
