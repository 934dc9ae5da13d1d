"""MkDocs hooks: the command line reference is written from the commands, so that it is never out of date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, "\n".join(reference())) if MARK in markdown else markdown


def reference() -> Iterator[str]:
    """Every command: what it does, its arguments and options, its examples."""
    import typer

    from spen.cli.app import app

    yield from _command(typer.main.get_command(app), ("spen",))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if len(path) > 1 and not children:
        yield f"## {' '.join(path)}\n"
        yield _plain(command.help) + "\n"
        yield from _parameters(command)
        yield from _examples(command.epilog or "")
    for name, child in children.items():
        yield from _command(child, (*path, name))


def _parameters(command: Any) -> Iterator[str]:
    rows = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    if rows:
        yield "| argument or option | | default |\n| --- | --- | --- |"
    for parameter in rows:
        names = ", ".join(f"`{o}`" for o in parameter.opts) if parameter.opts[0].startswith("-") else ""
        names = names or f"`{parameter.name.upper()}`"
        default = parameter.default
        shown = "" if default in (None, "", False, ()) or callable(default) else f"`{default}`"
        yield f"| {names} | {_plain(getattr(parameter, 'help', '') or '')} | {shown} |"
    if rows:
        yield ""


def _examples(epilog: str) -> Iterator[str]:
    lines = [line.strip().replace(r"\[", "[") for line in epilog.splitlines() if line.strip().startswith("spen ")]
    if lines:
        yield "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```\n"


def _plain(text: str | None) -> str:
    """Rich's markup taken away, cells of a table left whole."""
    return re.sub(r"\[/?(dim|bold|italic)\]", "", " ".join((text or "").split())).replace("|", "\\|")
