"""spen evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, or a model shipped with the package (dp-3).")],
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    every: Annotated[int, typer.Option(help="Score every n-th frame only.")] = 1,
    data: Annotated[str, typer.Option(help="Another data set than the one it was trained on.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """The task's metrics of a run, or of a shipped model, on a split.

    [dim]spen evaluate runs/rooms/dp-3/seed-0 --split dev --json        spen evaluate dp-3 --every 10[/dim]
    """
    if split not in ("train", "dev", "test"):
        raise ValueError(f"--split is train, dev or test, not {split!r}")
    from spen.tasks.denoising.recipes import find_regime
    from spen.tasks.shipped import check_model

    check_model(model)
    if Path(model).is_dir() and not (Path(model) / "run.json").is_file():
        raise ValueError(f"{model} is not a run: it has no run.json")
    description = json.loads((Path(model) / "run.json").read_text())["recipe"] if Path(model).is_dir() else {}
    regime = find_regime(data or description.get("data", "rooms"))
    from spen.tasks.denoising.experiment import evaluate as score  # torch comes after the user's mistakes
    from spen.tasks.denoising.experiment import open_splits
    from spen.tasks.denoising.predict import load_model

    splits = open_splits(regime, quick=description.get("quick", False))
    result = score(load_model(model, device), getattr(splits, split), every=every)
    if as_json:
        typer.echo(json.dumps({"model": model, "data": regime.name, "split": split, **result}))
        return
    typer.echo(f"{model} on {int(result['frames'])} {split} frames of {regime.name}")
    typer.echo(f"  PSNR          {result['psnr']:8.2f} dB")
    typer.echo(f"  on surfaces   {result['surface_psnr']:8.2f} dB")
    typer.echo(f"  in holes      {result['hole_rmse_mm']:8.0f} mm RMSE")
    typer.echo(f"  a frame takes {result['seconds_per_frame']:8.3f} s")
