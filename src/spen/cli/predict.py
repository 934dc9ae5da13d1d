"""spen predict."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spen.cli.options import Build, Json, Model, OnDevice, open_for, task_examples, with_task_options
from spen.cli.terminal import answer, counted, examples

STANDARD = Path("-")

EXAMPLES = examples(*task_examples("predict"), "spen predict runs/mine new.npy -o answers.npy --build mine:make_model")


@with_task_options("predict")
def predict(
    model: Model,
    inputs: Annotated[
        list[Path], typer.Argument(help="Files or folders of the kind that the model reads; - is standard input.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file for one input, a folder for several; stdout if it is - or not given."),
    ] = None,
    device: OnDevice = "auto",
    build: Build = "",
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Predict from files: images, parsed sentences, tables, puzzles; for your own model .npy, .npz or .safetensors."""
    out = None if out == STANDARD else out
    missing = [path for path in inputs if not path.exists() and path != STANDARD]
    if missing:
        raise ValueError(f"{missing[0]} does not exist")
    if out is None and as_json:
        raise ValueError("--json prints the names of the files that were written; give --out as well")
    _, opened = open_for("predict", model, options, device=device, build=build)
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
