"""spen reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spen import tasks
from spen.cli.catalogue import complete_data
from spen.cli.options import OUT_OF_TIME, Json, OnDevice, Seconds, check_options, task_examples, with_task_options
from spen.cli.terminal import answer, examples, resumable, working
from spen.tasks.options import parse_seeds, parse_settings

EXAMPLES = examples(*task_examples("reproduce"))


def _tables() -> dict[str, str]:
    """Names of tables, with the task of each."""
    return {task.table: task.name for task in tasks.every().values() if task.table is not None}


@with_task_options("reproduce")
def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(f'{table} ({name})' for table, name in _tables().items())}.",
            autocompletion=lambda: list(_tables()),
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="A data set of `spen data list`, or a folder; built-in data if not given.",
            autocompletion=complete_data,
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and the report; runs/TABLE or runs/TABLE-quick if not given.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Recipes, separated by commas; `ablation` for the ablations; all rows if not given.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="The number of seeds (3), or a list of seeds (0,2,5).")] = "3",
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on built-in data with one seed, in a few minutes.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Rows trained side by side.")] = 1,
    device: OnDevice = "auto",
    seconds: Seconds = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="[ROW:]KEY=VALUE", help="Change an option of the recipes.")
    ] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="Add the finished runs of another folder.")] = None,
    dev_only: Annotated[
        bool, typer.Option("--dev-only", help="Score the development split and not the test split.")
    ] = False,
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Train and score every row of a table, with the paper's number beside it; write results and a report."""
    from spen.tasks.task import ReproduceOrder

    if table not in _tables():
        raise ValueError(f"there is no table {table!r}; there are {', '.join(_tables())}")
    task = tasks.find(_tables()[table])
    check_options("reproduce", task, options or {})
    folder = out or Path("runs") / (f"{table}-quick" if quick else table)
    with working("loading"):
        from spen.tasks.options import resolve_device

        resolve_device(device)
    order = ReproduceOrder(
        folder,
        data,
        tuple(name.strip() for name in rows.split(",") if name.strip()),
        (0,) if quick else parse_seeds(seeds),
        quick,
        jobs,
        device,
        seconds,
        parse_settings(settings or []),
        dev_only,
        tuple(merge or ()),
        options or {},
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    with resumable(folder):
        done = task.reproduce(order)
    if as_json:
        answer({**done.whole, "report": done.report})
    else:
        typer.echo("\n".join(done.lines))
        typer.echo(f"report: {done.report}")
        if not done.finished:
            typer.echo("time is up; the same command goes on")
    raise typer.Exit(0 if done.finished else OUT_OF_TIME)
