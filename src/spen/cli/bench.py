"""spen bench."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spen.cli.catalogue import complete_model, find_recipe
from spen.cli.options import Build, Json, OnDevice, check_options, open_for, task_examples, with_task_options
from spen.cli.terminal import answer, examples

if TYPE_CHECKING:
    from spen.tasks.bench import Report

EXAMPLES = examples(*task_examples("bench"))


@with_task_options("bench")
def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package, a run folder, an exported folder or a recipe.", autocompletion=complete_model
        ),
    ],
    device: OnDevice = "auto",
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size; that of the recipe if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timings of each strategy, of which the fastest is printed.")] = 3,
    build: Build = "",
    data: Annotated[str, typer.Option(help="With --build: a file with the array x.")] = "",
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Time every gradient strategy for a model on this device, and print what `gradient=Auto()` would choose."""
    from spen.models import shipped

    if data and not build:
        raise ValueError("--data is for a model of your own, opened with --build; a task has its own examples")
    if build or Path(model).is_dir() or model in shipped():
        saved, opened = open_for("bench", model, options, device=device, build=build, data=data)
        owner: str | None = saved.task or None
    else:
        try:
            task, name = find_recipe(model)
        except ValueError as error:
            known = ", ".join(shipped())
            raise ValueError(f"{model!r} is no run folder and no model of the package ({known}), and {error}") from None
        check_options("bench", task, options or {})
        import torch

        torch.manual_seed(0)
        owner, opened = task.name, task.fresh(name)
    from spen.tasks.bench import time_strategies
    from spen.tasks.options import resolve_device

    log, place = partial(typer.echo, err=True), resolve_device(device)
    report = time_strategies(opened, batch=batch, device=place, repeats=repeats, log=log, **(options or {}))
    if as_json:
        answer({"model": model, "task": owner, **asdict(report)})
    else:
        typer.echo("\n".join(lines(model, report)))


def lines(model: str, report: Report) -> list[str]:
    """The table for a terminal: the fastest first, then those that are not possible."""
    steps = "step" if report.steps == 1 else "steps"
    text = [
        f"{model}, batch {report.batch}, {report.steps} {steps}, on {report.device}: {report.fastest} is the fastest"
    ]
    if report.chosen not in ("", report.fastest):
        text[0] += f"; Auto would use {report.chosen} at first"
    possible = [t for t in report.strategies if t.milliseconds is not None]
    width = max(len(t.strategy) for t in report.strategies)
    for t in sorted(possible, key=lambda t: t.milliseconds or 0.0):
        error = "the reference" if t.error is None else f"gradient error {t.error:.0e}"
        text.append(f"  {t.strategy:{width}s}  {t.milliseconds:9.2f} ms  {t.memory_mib:9.2f} MiB  {error}")
    text += [f"  {t.strategy:{width}s}  not possible: {t.problem}" for t in report.strategies if t.problem is not None]
    text.append(f"  (memory: {report.memory})")
    return text
