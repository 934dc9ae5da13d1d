"""spen data list | fetch | make."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from spen import tasks
from spen.cli.options import Json, task_examples, with_options
from spen.cli.terminal import answer, counted, examples, working
from spen.tasks.task import Dataset

data = typer.Typer(no_args_is_help=True, help="List, download and prepare data sets.")


def _sets(action: str = "") -> dict[str, Dataset]:
    """Data sets by name; those that can be fetched or made."""
    every = {d.name: d for task in tasks.every().values() for d in task.datasets.values()}
    return {name: d for name, d in every.items() if not action or getattr(d, action)}


@data.command("list", epilog=examples("spen data list", "spen data list --json"))
def list_data(as_json: Json = False) -> None:
    """List the data sets and whether each is installed. SPEN_DATA names the data folder."""
    listed = [(task.name, d) for task in tasks.every().values() for d in task.datasets.values() if d.trains]
    if as_json:
        answer(
            [
                {
                    "task": t,
                    "name": d.name,
                    "about": d.about,
                    "licence": d.licence,
                    "built_in": d.folder is None,
                    "place": d.place(),
                }
                for t, d in listed
            ]
        )
        return
    for task, d in listed:
        place = d.place()
        where = "built in" if d.folder is None else str(place) if place is not None else f"not here: {d.obtain}"
        about = f"{d.about} ({d.licence})" if d.licence else d.about
        typer.echo(f"{d.name:12s} {task}: {about}\n{'':12s} {where}")


def _with_options(action: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that data sets declare; those that were given arrive in ``options``."""
    return with_options((o, d.name) for d in _sets(action).values() for o in getattr(d, f"{action}_options"))


def _find(name: str, action: str, options: dict[str, Any]) -> Callable[..., Any]:
    """The function that fetches or makes the data set; options of other data sets are refused."""
    known = _sets(action)
    if name not in known:
        raise ValueError(f"there is no data set {name!r} to {action}; there are {', '.join(known)}")
    own = {option.name: option for option in getattr(known[name], f"{action}_options")}
    for given in options:
        if given not in own:
            raise ValueError(f"{name} has no option --{given.replace('_', '-')}")
    found: Callable[..., Any] = pkgutil.resolve_name(getattr(known[name], action))
    return found


@data.command("fetch", epilog=examples(*task_examples("fetch")))
@_with_options("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(help=f"{', '.join(_sets('fetch'))}.", autocompletion=lambda: list(_sets("fetch")))
    ],
    folder: Annotated[Path | None, typer.Option(help="Folder to download to; the cache folder if not given.")] = None,
    options: dict[str, Any] | None = None,
) -> None:
    """Download a data set with checksums and print its folder. An interrupted download resumes."""
    for path in _find(name, "fetch", options or {})(folder, **(options or {})):
        typer.echo(str(path))


@data.command("make", epilog=examples(*task_examples("make")))
@_with_options("make")
def make(
    name: Annotated[
        str, typer.Argument(help=f"{', '.join(_sets('make'))}.", autocompletion=lambda: list(_sets("make")))
    ],
    source: Annotated[
        Path | None, typer.Option(help="The downloaded folder; the one that fetch wrote if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; the one that --data reads if not given.")
    ] = None,
    as_json: Json = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Prepare a downloaded data set and print the sizes of its splits."""
    make_it = _find(name, "make", options or {})
    with working("preparing the data"):
        made = make_it(source, out, progress=counted, **(options or {}))
    if as_json:
        answer(made)
        return
    typer.echo(f"{made['folder']}: " + ", ".join(f"{n} {split}" for split, n in made["sizes"].items()))
    if made.get("dropped"):
        typer.echo(f"{made['dropped']} {made['unit']} were dropped: the two sources disagree about their words")
