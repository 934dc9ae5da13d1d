"""spen score."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spen.cli.options import Json
from spen.cli.terminal import answer, working

if TYPE_CHECKING:
    from spen.tasks.srl.score import Tally


def score(
    gold: Annotated[Path, typer.Argument(help="A props file, gzipped or not.")],
    predicted: Annotated[Path, typer.Argument(help="The same sentences with predicted propositions.")],
    as_json: Json = False,
) -> None:
    """The CoNLL-2005 metric on two props files, printed as the official scorer prints it."""
    with working("scoring"):
        from spen.tasks.srl.score import score_files, score_table

        result = score_files(gold, predicted)
    for warning in result.warnings:
        typer.echo(warning, err=True)
    if as_json:
        counts = {"sentences": result.sentences, "propositions": result.propositions, "perfect": result.perfect}
        labels = {label: _tally(t) for label, t in {**result.labels, **result.verbs}.items()}
        answer({**counts, "overall": _tally(result.overall), "labels": labels, "warnings": result.warnings})
    else:
        typer.echo(score_table(result), nl=False)


def _tally(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "precision": tally.precision, "recall": tally.recall, "f1": tally.f1}
