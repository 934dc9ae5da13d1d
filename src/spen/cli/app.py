"""All commands, gathered. Each lives in its own file and imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from spen import __version__
from spen.cli.compare import compare
from spen.cli.data import data
from spen.cli.evaluate import evaluate
from spen.cli.listing import list_recipes
from spen.cli.predict import predict
from spen.cli.reproduce import reproduce
from spen.cli.score import score
from spen.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Structured prediction by energy minimisation: train, predict and reproduce. `--debug` shows tracebacks.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Structured prediction by energy minimisation."""


app.command("list")(list_recipes)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("predict")(predict)
app.command("reproduce")(reproduce)
app.command("score")(score)
app.command("compare")(compare)
app.add_typer(data, name="data")
