"""spen train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spen.cli.catalogue import complete_data, complete_recipe, find_recipe
from spen.cli.options import (
    OUT_OF_TIME,
    Json,
    OnDevice,
    Seconds,
    Settings,
    check_options,
    task_examples,
    with_task_options,
)
from spen.cli.terminal import answer, examples, resumable, working
from spen.tasks.options import parse_settings

if TYPE_CHECKING:
    from spen.tasks.task import Trained

EXAMPLES = examples(*task_examples("train"))


@with_task_options("train")
def train(
    recipe: Annotated[str, typer.Argument(help="A name from `spen list`.", autocompletion=complete_recipe)],
    data: Annotated[
        str,
        typer.Option(
            help="A data set of `spen data list`, or a path; that of the recipe if not given.",
            autocompletion=complete_data,
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/DATA/RECIPE/seed-N if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the order of batches and random draws.")] = 0,
    devices: Annotated[int, typer.Option(min=1, help="Devices on each machine; more than one trains with DDP.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines; start the command on each, for instance with srun.")] = 1,
    device: OnDevice = "auto",
    seconds: Seconds = None,
    settings: Settings = None,
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Train a recipe into a run folder. After an interruption the same command resumes."""
    from spen.tasks.task import TrainOrder

    task, name = find_recipe(recipe, data)
    changes = parse_settings(settings or [])
    check_options("train", task, options or {})
    where = data or task.default_data(name)
    task.check(name, where, changes)
    folder = out or Path("runs") / Path(where).stem / name.replace(":", ",") / f"seed-{seed}"
    with working("loading"):  # torch is imported after the checks that do not need it
        from spen.tasks.options import resolve_device
        from spen.training.processes import is_main_process

        resolve_device(device)
    with resumable(folder):
        result = task.train(
            TrainOrder(name, where, folder, seed, devices, device, nodes, seconds, changes, options or {})
        )
    if is_main_process():
        _report(folder, result, as_json)
    raise typer.Exit(OUT_OF_TIME if result is None else 0)


def _report(folder: Path, result: Trained | None, as_json: bool) -> None:
    if as_json:
        answer({"run": folder, "finished": result is not None, **(vars(result) if result else {})})
    elif result is None:
        typer.echo(f"time is up; the same command goes on with {folder}")
    else:
        best = "" if result.dev is None else f": best development {result.measure} {result.dev:.4g}"
        typer.echo(f"{folder}{best}")
