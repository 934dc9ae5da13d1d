"""What a person at a terminal sees beside the answer: examples in help, progress, how to go on after Ctrl-C.

Progress goes to stderr, and only where stderr is a terminal; stdout holds the answer alone, so that it can be piped.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer

from spen.cli import Interrupted

T = TypeVar("T")


def examples(*commands: str) -> str:
    """The end of a command's help: its examples, one a line. The tests take them from there and run each."""
    lines = "\n".join(f"  {command}" for command in commands).replace("[", r"\[")
    return f"[bold]Examples[/bold]\n{lines}"


def answer(value: Any) -> None:
    """JSON, alone on stdout; NaN, which JSON does not know, becomes null."""
    typer.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and value != value else value


@contextmanager
def working(text: str) -> Iterator[None]:
    """A spinner with a word on what goes on, while nothing can be counted."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def counting(text: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over `total` things; the function given is called after each."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


def counted(things: Iterable[T], total: int, text: str) -> Iterator[T]:
    """The same things, with a bar."""
    with counting(text, total) as done:
        for thing in things:
            yield thing
            done()


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C or a SIGTERM within leaves a folder that the same command goes on with, and says so."""
    command = shlex.join(["spen", *sys.argv[1:]])
    try:
        yield
    except SystemExit:  # of a SIGTERM, with the status that says so
        typer.echo(f"terminated; {folder} keeps what is done: `{command}` goes on from there", err=True)
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {folder} keeps what is done: `{command}` goes on from there") from None
