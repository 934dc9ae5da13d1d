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
    predicted: Annotated[
        list[Path], typer.Argument(help="Predictions for the same sentences; with --compare one file for each seed.")
    ],
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Predictions of another system, one file for each seed, in the same order."),
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of --compare.")] = 10_000,
    as_json: Json = False,
) -> None:
    """The CoNLL-2005 metric on two props files, printed as the official scorer prints it.

    With --compare: the difference of F1 to another system, its bootstrap interval over sentences, and p.
    """
    if compare:
        _compare(gold, predicted, compare, resamples, as_json)
        return
    if len(predicted) > 1:
        raise ValueError(f"one file is scored at a time, not {len(predicted)}; with --compare two systems are compared")
    with working("scoring"):
        from spen.tasks.srl.score import score_files, score_table

        result = score_files(gold, predicted[0])
    for warning in result.warnings:
        typer.echo(warning, err=True)
    if as_json:
        counts = {"sentences": result.sentences, "propositions": result.propositions, "perfect": result.perfect}
        labels = {label: _tally(t) for label, t in {**result.labels, **result.verbs}.items()}
        answer({**counts, "overall": _tally(result.overall), "labels": labels, "warnings": result.warnings})
    else:
        typer.echo(score_table(result), nl=False)


def _compare(gold: Path, a: list[Path], b: list[Path], resamples: int, as_json: bool) -> None:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} files against {len(b)}; give one of each system for every seed, in the same order")
    with working("comparing"):
        from spen.tasks.srl.compare import compare, counts_of
        from spen.tasks.srl.formats.conll2005 import read_props

        truth = read_props(gold)
        runs = [[counts_of(truth, read_props(path)) for path in files] for files in (a, b)]
        result = compare(*runs, resamples=resamples)
    if as_json:
        answer({**asdict(result), "sentences": len(truth), "resamples": resamples})
    else:
        typer.echo(str(result))


def _tally(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "precision": tally.precision, "recall": tally.recall, "f1": tally.f1}
