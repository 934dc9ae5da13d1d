"""What a person at a terminal sees beside the answer: examples in help, progress, how to go on after Ctrl-C.

Progress goes to stderr, and only where stderr is a terminal; stdout holds the answer alone, so that it can be piped.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import typer

from spen.cli import Interrupted

T = TypeVar("T")


def examples(*commands: str) -> str:
    """The end of a command's help: its examples, one a line. The tests run each of them."""
    lines = "\n".join(f"  {command}" for command in commands).replace("[", r"\[")
    return f"[bold]Examples[/bold]\n{lines}"


def answer(value: Any) -> None:
    """Print JSON; NaN, which JSON does not have, becomes null."""
    typer.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False, default=os.fspath))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and value != value else value


def working(text: str) -> AbstractContextManager[Any]:
    """A spinner with a text, for work whose length is not known."""
    from rich.console import Console

    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()


def counted(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """The same items, with a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        yield from bar.track(items, total=total, description=text)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print the command that resumes from the folder."""
    command = shlex.join(["spen", *sys.argv[1:]])
    try:
        yield
    except SystemExit:  # of a SIGTERM, with the status that says so
        typer.echo(f"terminated; {folder} keeps what is done: `{command}` goes on from there", err=True)
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {folder} keeps what is done: `{command}` goes on from there") from None
