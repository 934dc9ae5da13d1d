"""spen predict."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spen.cli.catalogue import complete_model
from spen.cli.options import Json, OnDevice, check_options, task_examples, with_task_options
from spen.cli.terminal import answer, counted, examples, working

STANDARD = Path("-")

EXAMPLES = examples(*task_examples("predict"))


@with_task_options("predict")
def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package, a run folder or an exported folder.", autocompletion=complete_model
        ),
    ],
    inputs: Annotated[
        list[Path], typer.Argument(help="Files or folders of the kind that the model reads; - is standard input.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file for one input, a folder for several, - or nothing for stdout."),
    ] = None,
    device: OnDevice = "auto",
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Predict from files: denoise images, label the roles of parsed sentences, or what the model's task does."""
    from spen import tasks
    from spen.models import find_model

    saved = find_model(model)
    task = tasks.find(saved.task)
    check_options("predict", task, options or {})
    out = None if out == STANDARD else out
    missing = [path for path in inputs if not path.exists() and path != STANDARD]
    if missing:
        raise ValueError(f"{missing[0]} does not exist")
    if out is None and as_json:
        raise ValueError("--json prints the names of the files that were written; give --out as well")
    with working("loading"):
        from spen.tasks.options import resolve_device

        opened = task.open(saved, resolve_device(device))
    with standard_input(inputs) as paths:
        written = list(opened.predict(paths, out, progress=counted, **(options or {})))
    if as_json:
        answer({"model": model, "written": written})
    for path in () if as_json else written:
        typer.echo(str(path))


@contextmanager
def standard_input(inputs: list[Path]) -> Iterator[list[Path]]:
    """The inputs, with what comes through standard input as a file in place of ``-``."""
    if STANDARD not in inputs:
        yield inputs
        return
    with tempfile.TemporaryDirectory() as folder:
        spooled = Path(folder) / "stdin"
        spooled.write_bytes(sys.stdin.buffer.read())
        yield [spooled if path == STANDARD else path for path in inputs]
