"""spen evaluate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spen.cli.catalogue import complete_data
from spen.cli.options import Build, Json, Model, OnDevice, Split, open_for, task_examples, with_task_options
from spen.cli.terminal import answer, counted, examples

EXAMPLES = examples(
    *task_examples("evaluate"),
    "spen evaluate runs/mine --build mine:make_model --metric mine:accuracy --data examples.npz",
)


@with_task_options("evaluate")
def evaluate(
    model: Model,
    split: Annotated[Split | None, typer.Option(help="The split to score; test if not given.")] = None,
    data: Annotated[
        str,
        typer.Option(
            help="Data set to score on; that of training if not given. With --build: a file with the arrays x and y.",
            autocompletion=complete_data,
        ),
    ] = "",
    device: OnDevice = "auto",
    build: Build = "",
    metric: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="With --build: your function of (y, target), or a Metric.")
    ] = "",
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Score a model on a split of its data, with the metrics of its task, or your own model with your metric."""
    if build and split:
        raise ValueError("--split is for data of a task; a model of your own is scored on all examples of --data")
    if metric and not build:
        raise ValueError("--metric is for a model of your own, opened with --build; a task has its own metrics")
    own = {"metric": metric} if build else {}
    saved, opened = open_for("evaluate", model, options, device=device, build=build)
    scores = opened.evaluate(split or "test", data, progress=counted, **own, **(options or {}))
    if as_json:
        where = {} if build else {"task": saved.task, "split": split or "test"}
        answer({"model": model, **where, **scores.values})
    else:
        typer.echo("\n".join(scores.lines))
