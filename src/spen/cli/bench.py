"""spen bench."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spen.cli.catalogue import complete_model, find_recipe
from spen.cli.options import Device, Json, check_device, describe_model
from spen.cli.terminal import answer, examples, working

if TYPE_CHECKING:
    from spen.tasks.bench import Report

EXAMPLES = examples(
    "spen bench dp-3 --batch 1 --size 24x32",
    "spen bench bibtex-end-to-end --batch 4 --json",
)


def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, a model shipped with the package, or a recipe.", autocompletion=complete_model
        ),
    ],
    device: Annotated[Device | None, typer.Option(help="The GPU if there is one, if not given.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples; the recipe's number if not given.")] = None,
    size: Annotated[str, typer.Option(metavar="HxW", help="Images: their size; the recipe's if not given.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many timings counts.")] = 3,
    as_json: Json = False,
) -> None:
    """Time every gradient strategy for a model on this device: what `gradient=Auto()` would choose, and why."""
    task, name, trained = _find(model)
    shape = _shape(size)
    if device is not None:
        check_device(device)
    with working("timing every strategy"):
        import torch

        from spen.tasks.bench import open_model, time_strategies

        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        opened = open_model(task, name, batch=batch, size=shape, device=place, trained=trained)
        report = time_strategies(opened.model, opened.x, repeats=repeats)
    if as_json:
        answer({"model": model, "task": task, **report.as_dict()})
    else:
        typer.echo("\n".join(lines(model, report)))


def lines(model: str, report: Report) -> list[str]:
    """The answer for a person: the fastest first, then those that are not possible."""
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


def _find(model: str) -> tuple[str, str, bool]:
    """(task, name, whether it has trained weights) of a run folder, a shipped model or a recipe."""
    from spen.tasks.shipped import shipped

    if Path(model).is_dir() or model in shipped():
        return str(describe_model(model).get("task")), model, True
    try:
        task, name = find_recipe(model)
    except ValueError as error:
        known = ", ".join(shipped())
        raise ValueError(f"{model!r} is no run folder and no model of the package ({known}), and {error}") from None
    return task, name, False


def _shape(size: str) -> tuple[int, int] | None:
    if not size:
        return None
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    if match is None or min(int(match[1]), int(match[2])) < 8:
        raise ValueError(f"--size takes HxW in pixels, 8x8 or more, as 96x128; not {size!r}")
    return int(match[1]), int(match[2])
