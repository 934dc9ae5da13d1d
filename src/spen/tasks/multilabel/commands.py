"""spen compare: one energy and data set, every way to learn it, equal budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spen.cli.options import Json
from spen.cli.terminal import answer, resumable, working


def compare(
    data: Annotated[str, typer.Argument(help="A name from `spen data list`, or the path of a table.")] = "bibtex",
    targets: Annotated[
        str, typer.Option(help="Label columns, separated by commas, for a file that does not name them.")
    ] = "",
    ways: Annotated[str, typer.Option(help="Objectives to compare, separated by commas; all if not given.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, …")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Budget of each run, in seconds of training.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Budget of each run, in parameter updates.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, results, table and plot; runs/compare-DATA if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train one energy with every objective under equal budgets; print quality, seconds, memory and steps, and plot."""
    from spen.tasks.multilabel.recipes import RECIPES, parse_targets

    name = Path(data).stem if Path(data).suffix else data
    known = RECIPES.get(f"{name}-end-to-end", RECIPES["labels"])
    recipe = replace(known, data=data, targets=parse_targets(targets))
    folder = out or Path("runs") / f"compare-{name}"
    chosen = [way.strip() for way in ways.split(",") if way.strip()] or None
    with working("importing torch"):
        from spen.tasks.multilabel.compare import compare as run
        from spen.tasks.multilabel.compare import plot, table
    with resumable(folder):
        attempts = run(recipe, folder, ways=chosen, seeds=range(seeds), seconds=seconds, updates=updates)
    plot(attempts, folder / "quality-against-time.png")
    if as_json:
        import json

        answer(json.loads((folder / "results.json").read_text(encoding="utf-8")))
    else:
        typer.echo(table(attempts), nl=False)
        typer.echo(f"plot: {folder / 'quality-against-time.png'}")
