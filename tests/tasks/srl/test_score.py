"""The CoNLL-2005 metric: by hand, by brute force, and to the byte where the official output is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.formats.conll2005 import write_props
from spen.tasks.srl.score import Tally, join_pieces, score, score_files, score_table
from spen.tasks.srl.sentences import Argument, BadCorpus, Proposition, Props
from tests.cli.world import CONLLU

from .strategies import pieces, props


def prop(*pieces: tuple[int, int, str], predicate: int = 0, sense: str = "go", length: int = 9) -> Props:
    return Props(length, (Proposition(predicate, sense, tuple(Argument(*piece) for piece in pieces)),))


@pytest.mark.parametrize("comment", ["# sent_id = 1\n", "# text = Ann sold the boat in May\n", ""])
def test_a_conllu_file_is_no_props_file(tmp_path: Path, comment: str) -> None:
    path = tmp_path / "gold.conllu"
    path.write_text(f"{comment}{CONLLU}")
    with pytest.raises(BadCorpus) as error:
        score_files(path, path)
    told = "this is CoNLL-U, and a props file is needed, as `spen predict` writes it"
    assert str(error.value) == f"{path}:1: {told}"


def brute_force(gold: list[Props], predicted: list[Props]) -> tuple[Tally, int]:
    """The definition, token by token: an argument is a label and the set of its tokens with their piece borders."""

    def arguments(p: Proposition) -> list[tuple[str, frozenset[tuple[int, int]]]]:
        found: list[tuple[str, frozenset[tuple[int, int]]]] = []
        for piece in sorted(p.pieces, key=lambda piece: piece.start):
            marks = frozenset((i, int(i == piece.start)) for i in range(piece.start, piece.end))
            if piece.role[:2] == "C-":
                earlier = [k for k, (label, _) in enumerate(found) if label == piece.role[2:]]
                if earlier:
                    label, old = found[earlier[-1]]
                    found[earlier[-1]] = (label, old | marks)
                    continue
                found.append((piece.role[2:], marks))
            else:
                found.append((piece.role, marks))
        return [argument for argument in found if argument[0] != "V"]

    correct = excess = missed = perfect = 0
    for g, p in zip(gold, predicted, strict=True):
        for a in g.propositions:
            match = [b for b in p.propositions if (b.predicate, b.sense) == (a.predicate, a.sense)]
            truth, guess = arguments(a), arguments(match[0]) if match else []
            hits = sum(argument in truth for argument in guess)
            correct, excess, missed = correct + hits, excess + len(guess) - hits, missed + len(truth) - hits
            perfect += len(guess) == len(truth) == hits
    return Tally(correct, excess, missed), perfect


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Props, Props]:
    gold = draw(props())
    guesses = []
    for p in gold.propositions:
        kind = draw(st.sampled_from(("same", "other", "none", "verb")))
        if kind == "same":
            guesses.append(p)
        elif kind == "other":
            guesses.append(Proposition(p.predicate, p.sense, draw(pieces(gold.length))))
        elif kind == "verb":
            guesses.append(Proposition(p.predicate, p.sense + "x", p.pieces))
    free = sorted(set(range(gold.length)) - {p.predicate for p in gold.propositions})
    if free and draw(st.booleans()):
        guesses.append(Proposition(free[0], "extra", draw(pieces(gold.length))))
    return gold, Props(gold.length, tuple(guesses))


@given(st.lists(pairs(), max_size=4))
def test_agrees_with_the_definition(drawn: list[tuple[Props, Props]]) -> None:
    gold, predicted = [g for g, _ in drawn], [p for _, p in drawn]
    result = score(gold, predicted)
    assert (result.overall, result.perfect) == brute_force(gold, predicted)
    assert result.propositions == sum(len(g.propositions) for g in gold)
    assert sum(t.correct for t in result.labels.values()) == result.overall.correct


@given(st.lists(props(), max_size=4))
def test_gold_against_itself_is_perfect(drawn: list[Props]) -> None:
    result = score(drawn, drawn)
    assert (result.overall.excess, result.overall.missed) == (0, 0)
    assert result.perfect == result.propositions
    assert result.warnings == ()


def test_continuations_join_the_latest() -> None:
    (p,) = prop((0, 1, "A1"), (2, 3, "A1"), (4, 5, "C-A1"), (6, 7, "C-A0"), (7, 8, "R-A1")).propositions
    assert join_pieces(p) == {
        ("A1", ((0, 1),)),
        ("A1", ((2, 3), (4, 5))),
        ("A0", ((6, 7),)),
        ("R-A1", ((7, 8),)),
    }


def test_the_verb_spoils_nothing_and_has_its_own_row() -> None:
    gold, predicted = prop((0, 1, "V"), (1, 2, "A0")), prop((0, 2, "V"))
    result = score([gold], [predicted])
    assert result.overall == Tally(0, 0, 1)
    assert result.verbs == {"V": Tally(0, 1, 1)}
    assert score([prop((0, 1, "V"))], [prop((0, 2, "V"))]).perfect_percent == 100


def test_precision_recall_and_f1() -> None:
    tally = Tally(3, 1, 3)
    assert (tally.precision, tally.recall, tally.f1) == (75.0, 50.0, 60.0)
    assert Tally().f1 == 0.0


def test_the_table(tmp_path: Path) -> None:
    gold = [prop((0, 1, "V"), (1, 2, "A0"), (2, 4, "AM-TMP"))]
    predicted = [prop((0, 1, "V"), (1, 2, "A0"), (2, 3, "AM-TMP"))]
    write_props(tmp_path / "g.props.gz", gold)
    write_props(tmp_path / "p.props", predicted)
    rule = "-" * 60
    assert score_table(score_files(tmp_path / "g.props.gz", tmp_path / "p.props")).split("\n") == [
        "Number of Sentences    :           1",
        "Number of Propositions :           1",
        "Percentage of perfect props :   0.00",
        "",
        "              corr.  excess  missed    prec.    rec.      F1",
        rule,
        "   Overall        1       1       1    50.00   50.00   50.00",
        "----------",
        "        A0        1       0       0   100.00  100.00  100.00",
        "    AM-TMP        0       1       1     0.00    0.00    0.00",
        rule,
        "         V        1       0       0   100.00  100.00  100.00",
        rule,
        "",
    ]


def test_unmatched_propositions_are_told() -> None:
    gold = Props(3, (Proposition(0, "go", (Argument(1, 2, "A0"),)), Proposition(1, "be", (Argument(2, 3, "A1"),))))
    predicted = Props(3, (Proposition(1, "see", (Argument(2, 3, "A1"),)), Proposition(2, "do")))
    result = score([gold], [predicted])
    assert result.overall == Tally(0, 0, 2)
    assert result.warnings == (
        "sentence 0 : verb go at position 0 : no predicted proposition, so all its arguments are missed",
        "sentence 0 : verb be at position 1 : predicted as verb see, so all its arguments are missed",
        "sentence 0 : verb do at position 2 : no gold proposition, so it is skipped",
    )


def test_different_sentences_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 gold sentences but 0 predicted; they must be the same ones"):
        score([Props(1)], [])
    with pytest.raises(ValueError, match="sentence 2 has 2 tokens in gold but 3 in the prediction"):
        score([Props(1), Props(2)], [Props(1), Props(3)])
