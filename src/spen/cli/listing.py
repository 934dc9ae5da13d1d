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
    from spen.tasks.denoising.recipes import RECIPES as DENOISING
    from spen.tasks.srl.recipes import RECIPES as SRL

    entries: list[dict[str, Any]] = [
        {"name": r.name, "task": r.task, "unit": "the paper's PSNR", "paper": r.paper, "about": r.about}
        for r in DENOISING.values()
    ]
    for s in SRL.values():
        paper = s.paper["ad3"].test if "ad3" in s.paper else None
        entries.append({"name": s.name, "task": "srl", "unit": "the paper's test F1", "paper": paper, "about": s.about})
    return entries
