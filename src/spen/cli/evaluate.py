"""spen evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    every: Annotated[int, typer.Option(help="Score every n-th frame only.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """The task's metrics of a run on a split.

    [dim]spen evaluate runs/rooms/dp-3/seed-0 --split dev --json[/dim]
    """
    if split not in ("train", "dev", "test"):
        raise ValueError(f"--split is train, dev or test, not {split!r}")
    if not (run / "run.json").is_file():
        raise ValueError(f"{run} is not a run: it has no run.json")
    from spen.tasks.denoising.experiment import evaluate as score  # torch comes after the user's mistakes
    from spen.tasks.denoising.experiment import load_run, open_splits
    from spen.tasks.denoising.recipes import find_regime
    from spen.training import Run

    denoise, _ = load_run(run, device)
    description = Run.open(run).description()["recipe"]
    splits = open_splits(find_regime(description["data"]), quick=description["quick"])
    result = score(denoise, getattr(splits, split), every=every)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "split": split, **result}))
        return
    typer.echo(f"{description['name']} on {int(result['frames'])} {split} frames of {description['data']}")
    typer.echo(f"  PSNR          {result['psnr']:8.2f} dB")
    typer.echo(f"  on surfaces   {result['surface_psnr']:8.2f} dB")
    typer.echo(f"  in holes      {result['hole_rmse_mm']:8.0f} mm RMSE")
    typer.echo(f"  a frame takes {result['seconds_per_frame']:8.3f} s")
