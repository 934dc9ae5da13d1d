"""spen evaluate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spen.cli.catalogue import complete_data, complete_model
from spen.cli.options import Json, OnDevice, Split, check_options, task_examples, with_task_options
from spen.cli.terminal import answer, counted, examples, working

EXAMPLES = examples(*task_examples("evaluate"))


@with_task_options("evaluate")
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package, a run folder or an exported folder.", autocompletion=complete_model
        ),
    ],
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    data: Annotated[
        str, typer.Option(help="Another data set than the one it was trained on.", autocompletion=complete_data)
    ] = "",
    device: OnDevice = "auto",
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Score a model on a split of its data, with the metrics of its task."""
    from spen import tasks
    from spen.models import find_model

    saved = find_model(model)
    task = tasks.find(saved.task)
    check_options("evaluate", task, options or {})
    if data in {d for t in tasks.every().values() if t is not task for d in t.datasets} - set(task.datasets):
        raise ValueError(f"{data} is no data set of {task.name}; there are {', '.join(task.datasets)}")
    with working("loading"):
        from spen.tasks.options import resolve_device

        opened = task.open(saved, resolve_device(device))
    scores = opened.evaluate(split, data, progress=counted, **(options or {}))
    if as_json:
        answer({"model": model, "task": task.name, "split": split, **scores.values})
    else:
        typer.echo("\n".join(scores.lines))
