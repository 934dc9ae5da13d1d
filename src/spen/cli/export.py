"""spen export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spen.cli.catalogue import complete_model
from spen.cli.options import Json, describe_model
from spen.cli.terminal import answer, examples, working

if TYPE_CHECKING:
    from spen.export import Written

EXAMPLES = examples(
    "spen export dp-3 dp-3.onnx",
    "spen export runs/rooms/dp-3/seed-0 denoiser --json",
)


def export(
    model: Annotated[
        str,
        typer.Argument(help="A run folder, or a model shipped with the package (dp-3).", autocompletion=complete_model),
    ],
    file: Annotated[Path, typer.Argument(help="FILE.onnx, FILE.pt2, or a new folder.")],
    compiled: Annotated[
        bool, typer.Option("--compile", help="FILE.pt2: compiled for this processor, by AOTInductor.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a model for other programs, the whole descent inside.

    FILE.onnx runs in onnxruntime without torch, FILE.pt2 in torch without spen; a folder is for SPEN.from_pretrained.
    """
    if file.suffix not in ("", ".onnx", ".pt2"):
        raise ValueError(f"{file} should end in .onnx or .pt2, or in nothing for a folder")
    if compiled and file.suffix != ".pt2":
        raise ValueError(f"--compile is for a .pt2 file, not for {file}")
    if file.suffix and file.is_dir():
        raise ValueError(f"{file} is a folder; give the name of a file")
    task = str(describe_model(model).get("task"))
    with working("exporting"):
        from spen.tasks.exporting import exportable, save_folder, write

        found = exportable(model, task)
        done = write(found, file, compiled=compiled) if file.suffix else save_folder(found, file)
    if as_json:
        answer({"model": model, "file": file, "format": done.format, **_numbers(done)})
        return
    size = sum(path.stat().st_size for path in (file.iterdir() if file.is_dir() else [file])) / 1e6
    typer.echo(f"{file}: {done.format}, {size:.1f} MB")
    if done.difference is not None:
        typer.echo(f"  inputs of other sizes are answered as by the model, to {done.difference:.0e}")
    for name, shape in done.inputs.items():
        typer.echo(f"  {name} ({', '.join(map(str, shape))})")


def _numbers(done: Written) -> dict[str, Any]:
    return {} if done.difference is None else {"inputs": done.inputs, "largest_difference": done.difference}
