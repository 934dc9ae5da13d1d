"""spen export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spen.cli.options import Build, Json, Model, open_for, task_examples
from spen.cli.terminal import answer, examples, working

EXAMPLES = examples(
    *task_examples("export"), "spen export runs/mine mine.onnx --build mine:make_model --data examples.npz"
)


def export(
    model: Model,
    file: Annotated[Path, typer.Argument(help="FILE.onnx, FILE.pt2, or a new folder.")],
    compiled: Annotated[
        bool, typer.Option("--compile", help="FILE.pt2: compile it for this processor with AOTInductor.")
    ] = False,
    half: Annotated[bool, typer.Option("--half", help="A folder: write matrices in half precision.")] = False,
    about: Annotated[str, typer.Option(help="A folder: a sentence on what the model is for.")] = "",
    build: Build = "",
    data: Annotated[str, typer.Option(help="With --build: a file with the array x, to trace the model on.")] = "",
    as_json: Json = False,
) -> None:
    """Export a model with its whole descent, for programs without spen.

    FILE.onnx runs in onnxruntime without torch, FILE.pt2 in torch without spen; a folder is for SPEN.from_pretrained
    and for every command that takes a model.
    """
    if str(file) == "-":
        raise ValueError("an export is a binary file or several files, not for stdout: name a file or a folder")
    if file.suffix not in ("", ".onnx", ".pt2"):
        raise ValueError(f"{file} should end in .onnx or .pt2, or in nothing for a folder")
    if compiled and file.suffix != ".pt2":
        raise ValueError(f"--compile is for a .pt2 file, not for {file}")
    if file.suffix and (half or about):
        raise ValueError(f"{'--half' if half else '--about'} is for a folder, not for {file}")
    if file.suffix and file.is_dir():
        raise ValueError(f"{file} is a folder; give the name of a file")
    if data and not build:
        raise ValueError("--data is for a model of your own, opened with --build; a task has its own examples")
    saved, opened = open_for("export", model, build=build, data=data)
    with working("exporting"):
        from spen.export.exportable import save_folder, write

        found = opened.exportable()
        done = write(found, file, compiled=compiled) if file.suffix else save_folder(found, file, half, about, saved)
    numbers = {} if done.difference is None else {"inputs": done.inputs, "largest_difference": done.difference}
    if as_json:
        answer({"model": model, "file": file, "format": done.format, **numbers})
        return
    size = sum(path.stat().st_size for path in (file.iterdir() if file.is_dir() else [file])) / 1e6
    typer.echo(f"{file}: {done.format}, {size:.1f} MB")
    if done.difference is not None:
        typer.echo(f"  inputs of other sizes are answered as by the model, to {done.difference:.0e}")
    for name, shape in done.inputs.items():
        typer.echo(f"  {name} ({', '.join(map(str, shape))})")
