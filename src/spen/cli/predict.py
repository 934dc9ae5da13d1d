"""spen predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[str, typer.Argument(help="A run folder, or a model shipped with the package (dp-3).")],
    inputs: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A file for one image, else a folder.")],
    peak: Annotated[float | None, typer.Option(help="The value that counts as 1: 4000 for depth in mm, say.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Denoise images: 8-bit, 16-bit or float, any size; bit depth and units are kept, holes (0) are filled.

    [dim]spen predict dp-3 noisy.png -o clean.png        spen predict runs/rooms/dp-3/seed-0 frames/ -o clean/[/dim]
    """
    from spen.tasks.shipped import check_model

    check_model(model)
    from spen.tasks.denoising.predict import denoise_files, load_model  # torch comes after the user's mistakes

    for written in denoise_files(load_model(model, device), inputs, out, peak):
        typer.echo(str(written))
