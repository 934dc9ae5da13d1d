"""spen data list | fetch | make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(no_args_is_help=True, help="Data: what there is, downloads with checksums, and making it.")


@data.command("list")
def list_data() -> None:
    """The data sets, and whether they are here.

    [dim]spen data list[/dim]
    """
    from spen.tasks.denoising.recipes import REGIMES
    from spen.tasks.locations import find_data

    for regime in REGIMES.values():
        if regime.needs is None:
            where = "built in"
        else:
            try:
                where = str(find_data(*regime.needs.split("/")))
            except FileNotFoundError:
                where = "not found"
        typer.echo(f"{regime.name:12s} {regime.about}\n{'':12s} {where}")


@data.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="7scenes or ewt.")],
    folder: Annotated[Path | None, typer.Option(help="Where to; the cache folder if not given.")] = None,
    scene: Annotated[
        str, typer.Option(help="Of 7-Scenes: chess, fire, heads, office, pumpkin, redkitchen, stairs.")
    ] = "redkitchen",
) -> None:
    """Download a data set: resumable, with checksums.

    [dim]spen data fetch 7scenes --scene redkitchen        spen data fetch ewt[/dim]
    """
    from spen.tasks.locations import cache_folder

    if name == "7scenes":
        from spen.tasks.denoising.download import fetch_sevenscenes

        typer.echo(str(fetch_sevenscenes(scene, folder or cache_folder() / "7scenes")))
    elif name == "ewt":
        from spen.tasks.srl.download import fetch_ewt

        archives = fetch_ewt(folder or cache_folder() / "srl" / "ewt" / "raw", progress=True)
        typer.echo(f"{archives.treebank}\n{archives.propbank}")
    else:
        raise ValueError(f"there is no data set {name!r} to fetch; there are 7scenes and ewt")


@data.command("make")
def make(
    name: Annotated[str, typer.Argument(help="7scenes, ewt or conll2005.")],
    source: Annotated[Path, typer.Option(help="The downloaded folder.")],
    out: Annotated[Path, typer.Option(help="Where the prepared form goes.")],
    ptb: Annotated[Path | None, typer.Option(help="For conll2005: the Penn Treebank.")] = None,
    device: Annotated[str, typer.Option(help="For 7scenes: cpu or cuda.")] = "cpu",
) -> None:
    """Make the prepared form of a downloaded data set.

    [dim]spen data make 7scenes --source redkitchen --out prepared[/dim]
    """
    if name == "conll2005" and ptb is None:
        raise ValueError("conll2005 has no words of its own: give the Penn Treebank with --ptb DIR")
    if name == "7scenes":
        from spen.tasks.denoising.sevenscenes import prepare

        counts = prepare(source, out, device=device)
        typer.echo(", ".join(f"{split}: {n} frames" for split, n in counts.items()))
    elif name == "ewt":
        from spen.tasks.srl.download import find_archives
        from spen.tasks.srl.ewt import make_ewt

        archives = find_archives(source)
        if archives is None:
            raise ValueError(f"{source} does not hold the two archives of EWT; `spen data fetch ewt` downloads them")
        join = make_ewt(archives.treebank, archives.propbank)
        join.write(out)
        for split, sentences in join.splits.items():
            typer.echo(f"{split}: {len(sentences)} sentences")
        typer.echo(f"dropped: {len(join.dropped)}")
    elif name == "conll2005":
        from spen.tasks.srl.penn import make_conll2005

        assert ptb is not None
        for made in make_conll2005(ptb, source):
            typer.echo(str(made))
    else:
        raise ValueError(f"there is no data set {name!r} to make; there are 7scenes, ewt and conll2005")
