"""spen score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    gold: Annotated[Path, typer.Argument(help="A props file, gzipped or not.")],
    predicted: Annotated[Path, typer.Argument(help="The same sentences with predicted propositions.")],
) -> None:
    """The CoNLL-2005 metric on two props files, printed as the official scorer prints it.

    [dim]spen score gold.props.gz pred.props[/dim]
    """
    from spen.tasks.srl.score import score_files, score_table

    result = score_files(gold, predicted)
    for warning in result.warnings:
        typer.echo(warning, err=True)
    typer.echo(score_table(result), nl=False)
