"""spen list."""

from __future__ import annotations

from dataclasses import asdict

import typer

from spen.cli.options import Json
from spen.cli.terminal import answer, examples

EXAMPLES = examples("spen list", "spen list --json")


def list_recipes(as_json: Json = False) -> None:
    """List the recipes of `spen train` with their published figures, and the trained models of the package."""
    from spen import tasks
    from spen.models import find_model, shipped

    known = tasks.every()
    models = {name: (find_model(name).task, about) for name, about in shipped().items()}
    if as_json:
        recipes = [{"task": t.name, **asdict(x), "unit": t.unit} for t in known.values() for x in t.recipes.values()]
        entries = [{"name": name, "task": task, "about": about} for name, (task, about) in models.items()]
        answer({"recipes": recipes, "models": entries})
        return
    width = max(len(name) for task in known.values() for name in task.recipes)
    for task in known.values():
        typer.echo(f"{task.name} ({task.unit})")
        for entry in task.recipes.values():
            figure = "" if entry.published is None else f"{entry.published:.2f}"
            typer.echo(f"  {entry.name:{width}s}  {figure:>6s}  {entry.about}")
    typer.echo("models that come with the package: spen predict MODEL INPUT -o OUT")
    for name, (task_name, about) in models.items():
        typer.echo(f"  {name:{width}s}  {task_name}: {about}")
