"""spen list."""

from __future__ import annotations

from dataclasses import asdict

import typer

from spen.cli.catalogue import recipes
from spen.cli.options import Json
from spen.cli.terminal import answer, examples

EXAMPLES = examples("spen list", "spen list --json")


def list_recipes(as_json: Json = False) -> None:
    """Every recipe, with the published figure for it; `spen train` takes their names."""
    listed = recipes()
    if as_json:
        answer([asdict(entry) for entry in listed])
        return
    width = max(len(entry.name) for entry in listed)
    task = ""
    for entry in listed:
        if entry.task != task:
            task = entry.task
            typer.echo(f"{task} ({entry.unit})")
        paper = "" if entry.paper is None else f"{entry.paper:.2f}"
        typer.echo(f"  {entry.name:{width}s}  {paper:>6s}  {entry.about}")
