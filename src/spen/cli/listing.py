"""spen list."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def list_recipes(as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False) -> None:
    """Every recipe, with the paper's figure for it.

    [dim]spen list        spen list --json[/dim]
    """
    entries = _entries()
    if as_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    width = max(len(e["name"]) for e in entries)
    task = ""
    for entry in entries:
        if entry["task"] != task:
            task = entry["task"]
            typer.echo(f"{task} ({entry['unit']})")
        paper = "" if entry["paper"] is None else f"{entry['paper']:.2f}"
        typer.echo(f"  {entry['name']:{width}s}  {paper:>6s}  {entry['about']}")


def _entries() -> list[dict[str, Any]]:
    from spen.tasks.denoising.recipes import RECIPES

    return [
        {"name": r.name, "task": r.task, "unit": "the paper's PSNR", "paper": r.paper, "about": r.about}
        for r in RECIPES.values()
    ]
