"""spen data list | fetch | make."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from spen.cli.catalogue import data_sets
from spen.cli.options import Device, Json, check_device
from spen.cli.terminal import answer, counted, examples, working

data = typer.Typer(no_args_is_help=True, help="Data: what there is, downloads with checksums, and making it.")

FETCH = ("7scenes", "ewt")
MAKE = ("7scenes", "ewt", "conll2005")


@data.command("list", epilog=examples("spen data list", "spen data list --json"))
def list_data(as_json: Json = False) -> None:
    """The data sets, and whether they are here. SPEN_DATA names the folder to look in."""
    listed = data_sets()
    if as_json:
        entries = [
            {"task": d.task, "name": d.name, "about": d.about, "built_in": d.folder is None, "place": d.place()}
            for d in listed
        ]
        answer(entries)
        return
    for d in listed:
        place = d.place()
        if d.folder is None:
            where = "built in"
        elif place is not None:
            where = str(place)
        else:
            where = f"not here: {d.get}" if d.get else f"not here: put {d.folder} into the folder SPEN_DATA names"
        typer.echo(f"{d.name:12s} {d.task}: {d.about}\n{'':12s} {where}")


@data.command("fetch", epilog=examples("spen data fetch ewt", "spen data fetch 7scenes --scene redkitchen"))
def fetch(
    name: Annotated[str, typer.Argument(help="7scenes or ewt.", autocompletion=lambda: list(FETCH))],
    folder: Annotated[Path | None, typer.Option(help="Where to; the cache folder if not given.")] = None,
    scene: Annotated[
        str | None,
        typer.Option(help="Of 7-Scenes: chess, fire, heads, office, pumpkin, redkitchen (if not given) or stairs."),
    ] = None,
) -> None:
    """Download a data set, resumable and with checksums; print where it lies."""
    if name not in FETCH:
        raise ValueError(f"there is no data set {name!r} to fetch; there are {' and '.join(FETCH)}")
    if name == "ewt":
        if scene is not None:
            raise ValueError("--scene is of 7scenes; ewt has none")
        from spen.tasks.srl.download import fetch_ewt

        archives = fetch_ewt(folder or _raw("ewt"), progress=sys.stderr.isatty())
        typer.echo(f"{archives.treebank}\n{archives.propbank}")
        return
    from spen.tasks.denoising.download import fetch_sevenscenes

    scene = scene or "redkitchen"
    where = folder or _raw("7scenes", scene).parent
    typer.echo(str(fetch_sevenscenes(scene, where, show_progress=sys.stdout.isatty())))


@data.command(
    "make",
    epilog=examples(
        "spen data make ewt",
        "spen data make 7scenes --source redkitchen --out prepared",
        "spen data make conll2005 --source conll05st-release --ptb treebank_3/parsed/mrg/wsj",
    ),
)
def make(
    name: Annotated[str, typer.Argument(help="7scenes, ewt or conll2005.", autocompletion=lambda: list(MAKE))],
    source: Annotated[Path | None, typer.Option(help="The downloaded folder; where fetch put it if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the prepared form goes; where --data finds it if not given.")
    ] = None,
    ptb: Annotated[Path | None, typer.Option(help="For conll2005: the Penn Treebank.")] = None,
    device: Annotated[Device, typer.Option(help="For 7scenes: where it is fused.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Make the prepared form of a downloaded data set; print what it holds."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "7scenes": lambda: _sevenscenes(source, out, device),
        "ewt": lambda: _ewt(source, out),
        "conll2005": lambda: _conll2005(source, out, ptb),
    }
    if name not in makers:
        raise ValueError(f"there is no data set {name!r} to make; there are 7scenes, ewt and conll2005")
    if ptb is not None and name != "conll2005":
        raise ValueError(f"--ptb is for conll2005; {name} needs no treebank")
    if device != "cpu" and name != "7scenes":
        raise ValueError(f"--device is for 7scenes; {name} is made on the CPU")
    check_device(device)
    made = makers[name]()
    if as_json:
        answer(made)
        return
    typer.echo(f"{made['folder']}: " + ", ".join(f"{n} {split}" for split, n in made["sizes"].items()))
    if made.get("dropped"):
        typer.echo(f"{made['dropped']} sentences were dropped: the two sources disagree about their words")


def _raw(*parts: str) -> Path:
    """Where downloads go."""
    from spen.tasks.locations import cache_folder

    return cache_folder() / "raw" / Path(*parts)


def _prepared(*parts: str) -> Path:
    """Where --data looks."""
    from spen.tasks.locations import cache_folder

    return cache_folder() / Path(*parts)


def _sevenscenes(source: Path | None, out: Path | None, device: str) -> dict[str, Any]:
    source = source or _raw("7scenes", "redkitchen")
    out = out or _prepared("denoising", source.name)
    with working("loading"):
        from spen.tasks.denoising.sevenscenes import prepare
    return {"folder": out, "unit": "frames", "sizes": prepare(source, out, device=device, progress=counted)}


def _ewt(source: Path | None, out: Path | None) -> dict[str, Any]:
    from spen.tasks.srl.download import find_archives
    from spen.tasks.srl.ewt import make_ewt

    source, out = source or _raw("ewt"), out or _prepared("srl", "ewt")
    archives = find_archives(source)
    if archives is None:
        raise ValueError(f"{source} does not hold the two archives of EWT; `spen data fetch ewt` downloads them")
    with working("joining the treebank and the propositions"):
        join = make_ewt(archives.treebank, archives.propbank)
        join.write(out)
    sizes = {split: len(sentences) for split, sentences in join.splits.items()}
    return {"folder": out, "unit": "sentences", "sizes": sizes, "dropped": len(join.dropped)}


def _conll2005(source: Path | None, out: Path | None, ptb: Path | None) -> dict[str, Any]:
    if ptb is None:
        raise ValueError("conll2005 has no words of its own: give the Penn Treebank with --ptb DIR")
    if source is None:
        raise ValueError("give the folder of the shared task's release with --source DIR")
    if out is not None:
        raise ValueError("the words of conll2005 are put into its --source folder; leave --out away")
    from spen.tasks.srl.penn import make_conll2005

    with working("putting the words back"):
        made = make_conll2005(ptb, source)
    return {"folder": source, "unit": "sentences", "sizes": {m.file.name: m.sentences for m in made}}
