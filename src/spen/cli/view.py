"""spen view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spen.cli.options import Build
from spen.cli.terminal import examples

EXAMPLES = examples(
    "spen view",
    "spen view runs --port 8000 --no-browser",
    "spen view runs/mine --build mine:make_model --data examples.npz",
)


def view(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Runs, or folders with runs below them.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 7860,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    build: Build = "",
    data: Annotated[
        str, typer.Option(help="With --build: a file with the array x and, optionally, the targets y.")
    ] = "",
) -> None:
    """Open a web page that shows how a descent finds its answer: images, sentences, landscapes, curves of runs."""
    from spen.viewer.server import serve

    serve(runs or [], host=host, port=port, browser=browser, build=build, data=data)
