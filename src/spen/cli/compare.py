"""spen compare: one energy and data set, every way to learn it, equal budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    data: Annotated[str, typer.Argument(help="bibtex, delicious, or a path to an npz, ARFF or LIBSVM file")] = "bibtex",
    ways: Annotated[str, typer.Option(help="objectives to compare, separated by commas (default: all)")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from 0")] = 1,
    seconds: Annotated[float | None, typer.Option(help="budget of each run, in seconds of training")] = None,
    updates: Annotated[int | None, typer.Option(help="budget of each run, in updates of the parameters")] = None,
    out: Annotated[Path, typer.Option(help="folder for runs, results.json, table.md and the plot")] = Path("compare"),
    as_json: Annotated[bool, typer.Option("--json", help="print results.json instead of the table")] = False,
) -> None:
    """Learn one energy in every way, with equal budgets: a table (quality, seconds, memory, steps) and a plot.

    [dim]spen compare bibtex --seeds 3        spen compare mine.arff --ways end-to-end,deep-value --seconds 60[/dim]
    """
    from spen.tasks.multilabel.compare import compare as run
    from spen.tasks.multilabel.compare import plot, table
    from spen.tasks.multilabel.recipes import RECIPES, MultilabelRecipe

    name = Path(data).stem if Path(data).suffix else data
    known = RECIPES.get(f"{name}-end-to-end", MultilabelRecipe(name=name, way="end-to-end"))
    recipe = known.with_changes(data=data)
    chosen = [way.strip() for way in ways.split(",") if way.strip()] or None
    attempts = run(recipe, out, ways=chosen, seeds=range(seeds), seconds=seconds, updates=updates)
    plot(attempts, out / "quality-against-time.png")
    if as_json:
        typer.echo((out / "results.json").read_text(encoding="utf-8"))
    else:
        typer.echo(table(attempts))
