"""spen reproduce."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from spen.cli.catalogue import complete_data
from spen.cli.options import OUT_OF_TIME, Accelerator, Json, Seconds, check_device
from spen.cli.terminal import answer, examples, resumable, working

EXAMPLES = examples(
    "spen reproduce table1 --quick",
    "spen reproduce table1 --data simulated --rows dp-3,foe-3 --seeds 1",
    "spen reproduce table2 --quick --rows local,spen",
    "spen reproduce table2 --data ewt --genre weblog --seconds 3600",
)


def reproduce(
    table: Annotated[
        Literal["table1", "table2"], typer.Argument(help="table1: denoising. table2: semantic role labelling.")
    ],
    data: Annotated[
        str,
        typer.Option(
            help="table1: rooms, simulated, redkitchen or gaussian. table2: builtin, ewt or a folder with ewt/.",
            autocompletion=complete_data,
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Where runs and the report go; runs/TABLE or runs/TABLE-quick if not given.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Recipes, separated by commas; all of them if not given.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on built-in data with one seed, a few minutes.")
    ] = False,
    genre: Annotated[str | None, typer.Option(help="table2: train without this genre, test on it.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Rows trained side by side.")] = 1,
    accelerator: Annotated[Accelerator, typer.Option(help="Where it trains.")] = "auto",
    seconds: Seconds = None,
    as_json: Json = False,
) -> None:
    """Train and score every row, with the paper's number beside it; write results and a report with pictures."""
    folder = out or Path("runs") / (f"{table}-quick" if quick else table)
    names = tuple(name.strip() for name in rows.split(",") if name.strip())
    counted = tuple(range(1 if quick else seeds))
    if genre is not None and table == "table1":
        raise ValueError("--genre is for table2; rooms have none")
    with resumable(folder):
        if table == "table1":
            whole = _table1(data or "rooms", folder, names, counted, quick, jobs, accelerator, seconds, as_json)
            finished = not any(result.get("unfinished") for result in whole["results"])
        else:
            whole = _table2(data, folder, names, counted, quick, genre, jobs, accelerator, seconds)
            finished = whole.pop("finished")
    if as_json:
        answer(whole)
    else:
        typer.echo(f"report: {whole['report']}")
        if not finished:
            typer.echo("time is up; the same command goes on")
    raise typer.Exit(0 if finished else OUT_OF_TIME)


def _table1(
    data: str,
    folder: Path,
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    quick: bool,
    jobs: int,
    accelerator: str,
    seconds: float | None,
    as_json: bool,
) -> dict[str, Any]:
    from spen.tasks.denoising.recipes import RECIPES, expand_rows, find_recipe, find_regime

    find_regime(data)
    rows = expand_rows(rows)
    for row in rows:
        find_recipe(row)
    check_device(accelerator)
    with working("loading"):
        from spen.tasks.denoising.report import write_report
        from spen.tasks.denoising.reproduce import QUICK_ROWS, table1
    names = rows or (QUICK_ROWS if quick else tuple(RECIPES))
    total = sum(1 if name in ("bm3d", "tv") else len(seeds) for name in names)
    with _bar(total) as tell:
        whole = table1(
            data,
            folder,
            rows=names,
            seeds=seeds,
            quick=quick,
            jobs=jobs,
            accelerator=accelerator,
            seconds=seconds,
            tell=tell,
        )
    with working("writing the report"):
        whole["report"] = str(write_report(whole, folder))
    if not as_json:
        _print(whole)
    return whole


def _table2(
    data: str,
    folder: Path,
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    quick: bool,
    genre: str | None,
    jobs: int,
    accelerator: str,
    seconds: float | None,
) -> dict[str, Any]:
    """Semantic role labelling: on EWT, or without a folder of data on the built-in corpus."""
    from spen.tasks.locations import find_data
    from spen.tasks.srl.recipes import ABLATIONS, find_recipe

    names = tuple(x for row in rows for x in (ABLATIONS if row == "ablation" else (row,)))
    for name in names:
        find_recipe(name)
    source = None if data in ("", "builtin") else find_data("srl") if data == "ewt" else Path(data)
    if source is not None and not source.is_dir():
        raise ValueError(f"{source} is no folder; give one that holds ewt/, or the name of a data set: builtin, ewt")
    check_device(accelerator)
    with working("loading"):
        import torch

        from spen.tasks.srl.corpora import builtin_splits, ewt_splits, without_genre
        from spen.tasks.srl.reproduce import ROWS, Settings
        from spen.tasks.srl.reproduce import reproduce as run

        if genre is not None:  # a genre that does not exist is told now, not after hours
            without_genre(builtin_splits(60) if source is None else ewt_splits(source), genre)
    settings = Settings(
        out=folder,
        data=source,
        rows=names or ROWS,
        seeds=seeds,
        genre=genre,
        device="cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu",
        seconds=seconds,
        workers=jobs,
        quick=quick,
    )
    # Rows are told as they come; they are no part of the answer.
    with redirect_stdout(sys.stderr):
        summary = run(settings)
    import json

    whole = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {**whole, "report": str(folder / "report.html"), "finished": summary is not None}


@contextmanager
def _bar(total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar over the rows, with the name and the score of each as it comes; without a terminal, the scores alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=total)

        def tell(result: dict[str, Any]) -> None:
            text = f"{result['psnr']:.2f} dB" if "psnr" in result else result.get("problem", "unfinished")
            console.print(f"  {result['recipe']} (seed {result['seed']}): {text}", highlight=False)
            bar.advance(task)

        yield tell


def _print(whole: dict[str, Any]) -> None:
    raw = whole["raw"]
    typer.echo(f"{'':14s} {'PSNR':>7s} {'±':>5s} {'surface':>8s} {'holes':>7s} {'paper':>7s}")
    typer.echo(f"{'noisy':14s} {raw['psnr']:7.2f} {'':5s} {raw['surface_psnr']:8.2f} {raw['hole_rmse_mm']:4.0f} mm")
    for line in whole["table"]:
        if line["psnr"] is None:
            typer.echo(f"{line['recipe']:14s} {line['problem'] or 'unfinished'}")
            continue
        spread = "" if line["spread"] is None else f"{line['spread']:.2f}"
        paper = "" if line["paper"] is None else f"{line['paper']:.2f}"
        typer.echo(
            f"{line['recipe']:14s} {line['psnr']:7.2f} {spread:>5s} {line['surface_psnr']:8.2f} "
            f"{line['hole_rmse_mm']:4.0f} mm {paper:>7s}"
        )
