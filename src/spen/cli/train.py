"""spen train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="A name from `spen list`.")],
    data: Annotated[str, typer.Option(help="rooms, simulated, redkitchen or gaussian.")] = "rooms",
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/DATA/RECIPE/seed-N if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and noise.")] = 0,
    devices: Annotated[int, typer.Option(help="More than one: DDP.")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    seconds: Annotated[float | None, typer.Option(help="Stop after these; the same command goes on later.")] = None,
    options: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
) -> None:
    """Train a recipe into a run folder. Interrupted, the same command goes on where it stopped.

    [dim]spen train dp-3 --data rooms        spen train dp-3 --set batches=500 --set steps=5[/dim]
    """
    from spen.cli.options import parse_settings
    from spen.tasks.denoising.recipes import find_recipe, find_regime

    chosen, regime = find_recipe(recipe).with_options(**parse_settings(options or [])), find_regime(data)
    from spen.tasks.denoising.experiment import train as train_denoiser  # torch comes after the user's mistakes

    folder = out or Path("runs") / data / recipe / f"seed-{seed}"
    run = train_denoiser(chosen, regime, folder, seed=seed, accelerator=accelerator, devices=devices, seconds=seconds)
    if run is None:
        typer.echo(f"time is up; the same command goes on with {folder}")
        return
    scores = [e["dev"] for e in run.metrics() if "dev" in e]
    best = f": best development PSNR {max(scores):.2f} dB" if scores else ""
    typer.echo(f"{folder}{best}")
