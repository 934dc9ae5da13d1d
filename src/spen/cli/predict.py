"""spen predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[str, typer.Argument(help="A run folder, or a model shipped with the package (dp-3).")],
    inputs: Annotated[list[Path], typer.Argument(help="Images or folders of images; for roles, one CoNLL-U file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A file for one input, else a folder.")],
    peak: Annotated[float | None, typer.Option(help="The value that counts as 1: 4000 for depth in mm, say.")] = None,
    style: Annotated[str, typer.Option("--format", help="For roles: props, json or pretty.")] = "props",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Denoise images (bit depth and units are kept, holes are filled), or label the roles of parsed sentences.

    [dim]spen predict dp-3 noisy.png -o clean.png        spen predict runs/rooms/dp-3/seed-0 frames/ -o clean/[/dim]
    """
    from spen.tasks.shipped import check_model

    check_model(model)
    if (Path(model) / "srl.json").is_file():
        from spen.tasks.srl.predict import main

        if len(inputs) != 1:
            raise ValueError(f"roles are labelled one CoNLL-U file at a time, not {len(inputs)}")
        raise typer.Exit(main([model, str(inputs[0]), "--format", style, "-o", str(out), "--device", device]))
    from spen.tasks.denoising.predict import denoise_files, load_model  # torch comes after the user's mistakes

    for written in denoise_files(load_model(model, device), inputs, out, peak):
        typer.echo(str(written))
