"""F1 = 2PR / (P + R) over arguments: the CoNLL-2005 metric, printed as the official srl-eval prints it.

An argument is correct when its label and all its pieces are. C-X continues the latest X before it in its proposition
(where there is none, it counts as an X); R-X is a label like any other; V is counted separately from the arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.sentences import Proposition, Props, Sentence

Joined = tuple[str, tuple[tuple[int, int], ...]]
_RULE = "-" * 60
_VERB = "V"


@dataclass(frozen=True, slots=True)
class Tally:
    """Correct, excess (predicted, not gold) and missed (gold, not predicted)."""

    correct: int = 0
    excess: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """In percent; 0 where nothing was predicted."""
        predicted = self.correct + self.excess
        return 100 * self.correct / predicted if predicted else 0.0

    @property
    def recall(self) -> float:
        """In percent; 0 where there was nothing to find."""
        gold = self.correct + self.missed
        return 100 * self.correct / gold if gold else 0.0

    @property
    def f1(self) -> float:
        """2PR / (P + R), in percent."""
        p, r = self.precision, self.recall
        return 2 * p * r / (p + r) if p + r else 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The whole table: overall, by label and for the verb itself, and warnings about the input."""

    sentences: int
    propositions: int
    perfect: int
    labels: dict[str, Tally]
    verbs: dict[str, Tally]
    warnings: tuple[str, ...] = ()

    @property
    def overall(self) -> Tally:
        """All labels but the verb's together."""
        counts = ((t.correct, t.excess, t.missed) for t in self.labels.values())
        return Tally(*(sum(column) for column in zip((0, 0, 0), *counts, strict=True)))

    @property
    def f1(self) -> float:
        return self.overall.f1

    @property
    def perfect_percent(self) -> float:
        return 100 * self.perfect / self.propositions if self.propositions else 0.0


def join_pieces(proposition: Proposition) -> set[Joined]:
    """Pieces → whole arguments (label, spans): C-X joins the latest X."""
    joined: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, int] = {}
    for piece in sorted(proposition.pieces):
        span = (piece.start, piece.end)
        if piece.role.startswith("C-") and piece.base in latest:
            joined[latest[piece.base]][1].append(span)
        else:
            latest[piece.base] = len(joined)
            joined.append((piece.base, [span]))
    return {(label, tuple(spans)) for label, spans in joined}


def score(gold: Iterable[Sentence | Props], predicted: Iterable[Sentence | Props]) -> Score:
    """The metric over aligned sentences.

    A predicted proposition without a gold one is skipped; a gold one without a predicted one of the same verb counts
    all its arguments as missed; both are named in `warnings`. Sentences that differ in number or length are an error.
    """
    golds, predictions = list(gold), list(predicted)
    if len(golds) != len(predictions):
        raise ValueError(f"{len(golds)} gold sentences but {len(predictions)} predicted; they must be the same ones")
    counts: Counter[tuple[str, str]] = Counter()
    warnings: list[str] = []
    propositions = perfect = 0
    for number, (g, p) in enumerate(zip(golds, predictions, strict=True)):
        if g.length != p.length:
            raise ValueError(f"sentence {number + 1} has {g.length} tokens in gold but {p.length} in the prediction")
        guesses = {q.predicate: q for q in p.propositions}
        for truth in g.propositions:
            guess = guesses.pop(truth.predicate, None)
            where = f"sentence {number} : verb {truth.sense} at position {truth.predicate}"
            if guess is None:
                warnings.append(f"{where} : no predicted proposition, so all its arguments are missed")
            elif guess.sense != truth.sense:
                warnings.append(f"{where} : predicted as verb {guess.sense}, so all its arguments are missed")
                guess = None
            propositions += 1
            perfect += _compare(join_pieces(truth), join_pieces(guess) if guess else set(), counts)
        for extra in guesses.values():
            where = f"sentence {number} : verb {extra.sense} at position {extra.predicate}"
            warnings.append(f"{where} : no gold proposition, so it is skipped")
    labels = sorted({label for label, _ in counts})
    tallies = {x: Tally(counts[x, "correct"], counts[x, "excess"], counts[x, "missed"]) for x in labels}
    verbs = {_VERB: tallies.pop(_VERB)} if _VERB in tallies else {}
    return Score(len(golds), propositions, perfect, tallies, verbs, tuple(warnings))


def score_files(gold: str | Path, predicted: str | Path) -> Score:
    """The metric on two props files, gzipped or not."""
    return score(read_props(gold), read_props(predicted))


def score_table(result: Score) -> str:
    """The table of the official scorer, byte for byte."""
    lines = [
        f"Number of Sentences    :      {result.sentences:6d}",
        f"Number of Propositions :      {result.propositions:6d}",
        f"Percentage of perfect props : {result.perfect_percent:6.2f}",
        "",
        f"{'':>10}   {'corr.':>6}  {'excess':>6}  {'missed':>6}   {'prec.':>6}  {'rec.':>6}  {'F1':>6}",
        _RULE,
        _row("Overall", result.overall),
        "-" * 10,
        *(_row(label, tally) for label, tally in result.labels.items()),
        _RULE,
        *(_row(label, tally) for label, tally in result.verbs.items()),
        _RULE,
    ]
    return "\n".join(lines) + "\n"


def _row(label: str, t: Tally) -> str:
    counts = f"{t.correct:6d}  {t.excess:6d}  {t.missed:6d}"
    return f"{label:>10}   {counts}   {t.precision:6.2f}  {t.recall:6.2f}  {t.f1:6.2f}"


def _compare(gold: set[Joined], predicted: set[Joined], counts: Counter[tuple[str, str]]) -> bool:
    """Counts by label; true when no argument but the verb is excess or missed."""
    wrong = 0
    kinds = {"correct": gold & predicted, "excess": predicted - gold, "missed": gold - predicted}
    for kind, arguments in kinds.items():
        for label, _ in arguments:
            counts[label, kind] += 1
            wrong += kind != "correct" and label != _VERB
    return not wrong
