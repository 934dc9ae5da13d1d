"""The application with all commands. Each command has its own file and imports what it needs when it runs."""

from __future__ import annotations

import pkgutil
from typing import Annotated

import typer

from spen import __version__, tasks
from spen.cli import bench, evaluate, export, listing, predict, reproduce, train, view
from spen.cli.data import data
from spen.cli.terminal import examples

EXAMPLES = examples("spen --version", "spen list", "spen predict dp-3 noisy.png -o clean.png")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EXAMPLES,
    help="Structured prediction by energy minimisation: train, predict and reproduce.",
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
    # `main` takes it out of the line, wherever it stands; it is here for the help.
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
) -> None:
    """Structured prediction by energy minimisation."""


app.command("list", epilog=listing.EXAMPLES)(listing.list_recipes)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("reproduce", epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("view", epilog=view.EXAMPLES)(view.view)
app.add_typer(data, name="data")
for _task in tasks.every().values():
    for _command in _task.commands:
        app.command(_command.name, epilog=examples(*_command.examples))(pkgutil.resolve_name(_command.function))
