"""spen reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def reproduce(
    table: Annotated[str, typer.Argument(help="table1: denoising. table2: semantic role labelling.")],
    data: Annotated[
        str, typer.Option(help="table1: rooms, simulated, redkitchen, gaussian. table2: a folder with ewt/.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Where runs and the report go; runs/TABLE if not given.")] = None,
    rows: Annotated[str, typer.Option(help="Recipes, separated by commas; all of them if not given.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small version on built-in data, a few minutes.")] = False,
    jobs: Annotated[int, typer.Option(help="Rows trained side by side.")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the results for a program to read.")] = False,
) -> None:
    """Train and score every row, with the paper's number beside it; write results and a report with pictures.

    [dim]spen reproduce table1 --quick        spen reproduce table1 --data simulated --rows dp-3,foe-3[/dim]
    """
    if table not in ("table1", "table2"):
        raise ValueError(f"there is no table {table!r} to reproduce; there are table1 and table2")
    folder = out or Path("runs") / table
    if table == "table2":
        _table2(data, folder, rows, seeds, quick, jobs)
        return
    import json

    from spen.tasks.denoising.recipes import RECIPES
    from spen.tasks.denoising.report import write_report
    from spen.tasks.denoising.reproduce import QUICK_ROWS, table1

    names = tuple(rows.split(",")) if rows else (QUICK_ROWS if quick else tuple(RECIPES))
    total = sum(1 if name in ("bm3d", "tv") else (1 if quick else seeds) for name in names)
    with _progress(total, silent=as_json) as tell:
        whole = table1(
            data or "rooms",
            folder,
            rows=names,
            seeds=(0,) if quick else tuple(range(seeds)),
            quick=quick,
            jobs=jobs,
            accelerator=accelerator,
            tell=tell,
        )
    report = write_report(whole, folder)
    if as_json:
        typer.echo(json.dumps({**whole, "report": str(report)}))
        return
    _print(whole)
    typer.echo(f"report: {report}")


def _table2(data: str, out: Path, rows: str, seeds: int, quick: bool, jobs: int) -> None:
    """Semantic role labelling: on EWT, or without a folder of data on the built-in corpus."""
    from spen.tasks.srl.reproduce import main

    numbers = ",".join(str(s) for s in range(1 if quick else seeds))
    arguments = ["--out", str(out), "--seeds", numbers, "--workers", str(jobs)]
    arguments += ["--data", data] if data else []
    arguments += ["--rows", rows] if rows else []
    raise typer.Exit(main([*arguments, *(["--quick"] if quick else [])]))


class _progress:  # noqa: N801
    """A bar over the rows, with the name and the score of each as it comes."""

    def __init__(self, total: int, *, silent: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, quiet=silent)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=silent)
        self.total = total

    def __enter__(self) -> Any:
        self.bar.start()
        self.task = self.bar.add_task("training", total=self.total)
        return self.tell

    def tell(self, result: dict[str, Any]) -> None:
        text = f"{result['psnr']:.2f} dB" if "psnr" in result else result.get("problem", "unfinished")
        self.bar.console.print(f"  {result['recipe']} (seed {result['seed']}): {text}", highlight=False)
        self.bar.advance(self.task)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


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
