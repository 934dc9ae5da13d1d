"""Sentences, arcs, broken constraints, and how they are shown."""

from __future__ import annotations

import re

import pytest

from spen.tasks.srl.decoding import DECODERS, violations
from spen.tasks.srl.drawing import PLAIN, RIGHT, WRONG
from spen.tasks.srl.formats.conllu import PARSE_FIRST, conllu_text
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.views import (
    MAX_CHARACTERS,
    MAX_TOKENS,
    Followed,
    arcs,
    broken,
    decoded,
    examples,
    follow,
    read,
    show,
)


@pytest.fixture(scope="module")
def labeller() -> Labeller:
    return Labeller.open("srl-grammar")


@pytest.fixture(scope="module")
def first(labeller: Labeller) -> Followed:
    """The example that the page begins with, whose local answer breaks constraints."""
    return follow(labeller, next(iter(examples().values())))


def test_examples_are_readable_and_keep_their_gold() -> None:
    assert len(examples()) == 10
    for title, sentence in examples().items():
        assert title.endswith(".")
        assert read(conllu_text(sentence)) is sentence
    assert sum(any(p.arguments for p in s.propositions) for s in examples().values()) == 8


def test_a_changed_example_has_no_gold_any_more() -> None:
    sentence = next(iter(examples().values()))
    changed = read(conllu_text(sentence).replace("witness", "baker"))
    assert not any(p.arguments for p in changed.propositions)


def words(count: int, tag: str = "NN") -> str:
    rows = (f"{i}\tw{i}\tw{i}\tX\t{tag}\t_\t{i - 1}\t{'dep' if i > 1 else 'root'}\t_\t_" for i in range(1, count + 1))
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "paste one sentence in CoNLL-U; there are 0 in the text"),
        (words(2, "VB") + "\n" + words(2, "VB"), "paste one sentence in CoNLL-U; there are 2 in the text"),
        (words(3), "the sentence has no verb (a tag VB…, or VERB), so there is nothing to label"),
        (words(MAX_TOKENS + 1, "VB"), "the sentence has 151 words, and the page draws at most 150"),
        ("x" * (MAX_CHARACTERS + 1), "the text has 40,001 characters, and one sentence has at most 40,000"),
        ("The dog barked", f"pasted text:1: {PARSE_FIRST}"),
    ],
)
def test_what_cannot_be_labelled_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(text)
    assert str(caught.value) == sentence


def test_constraints_are_broken_by_overlap_and_by_repetition() -> None:
    spans = [(0, 2), (1, 3), (4, 5), (6, 7), (7, 8)]
    assert broken([1, 2, 3, 3, 9], spans, core=(1, 2, 3)) == {0: "overlap", 1: "overlap", 2: "repeat", 3: "repeat"}
    assert broken([1, 0, 9, 9, 0], spans, core=(1, 2, 3)) == {}


def test_red_arcs_are_where_the_count_of_violations_is(labeller: Labeller) -> None:
    seen = 0
    for sentence in examples().values():
        followed = follow(labeller, sentence)
        for t, y in enumerate(followed.outputs):
            red = any(arc.colour == WRONG for k in range(len(sentence.propositions)) for arc in arcs(followed, t, k))
            assert red == bool(violations(y, followed.target, followed.core) > 0)
            seen += red
    assert seen > 10


def test_the_descent_lowers_the_energy_and_mends_the_constraints(first: Followed) -> None:
    counts = [int(violations(y, first.target, first.core)) for y in first.outputs]
    assert counts[0] == 2
    assert counts[-1] == 0
    assert first.energies[-1] < first.energies[0]
    assert len(first.outputs) == len(first.energies) == 11


def test_arcs_carry_probabilities_of_roles(first: Followed) -> None:
    y = first.outputs[0][0, 0][first.target.mask[0, 0]]
    drawn = arcs(first, 0, 0)
    assert drawn
    for arc in drawn:
        role, share = arc.label.split()
        spans = first.target.spans[0, 0][first.target.mask[0, 0]].tolist()
        k = spans.index([arc.start, arc.end])
        assert f"{float(y[k, first.roles.index(role)]):.2f}".removeprefix("0") == share
        assert arc.strength == pytest.approx(1 - float(y[k, 0]), abs=1e-6)
        assert " ".join(first.sentence.words[arc.start : arc.end]) in arc.hint


def test_the_last_decoding_is_what_predict_says(labeller: Labeller, first: Followed) -> None:
    for decoder in DECODERS:
        assert decoded(first, len(first.outputs) - 1, decoder) == labeller([first.sentence], decoder=decoder)[0]


def test_the_answer_has_panels_status_and_curves(first: Followed) -> None:
    html = show(first, "ad3")
    assert html.count('<section class="predicate">') == 2
    assert re.findall(r'<p class="status( bad)?" data-t="0">([^<]*)</p>', html) == [
        (" bad", "2 constraints are violated before rounding")
    ]
    assert re.findall(r'<p class="status( bad)?" data-t="10">([^<]*)</p>', html) == [
        ("", "no constraints are violated before rounding")
    ]
    for chart in ("energy", "constraints violated", "probability of the likeliest role"):
        assert f'aria-label="{chart}"' in html
    assert "rounded by AD³" in html
    assert RIGHT in html
    assert "rounded by the greedy heuristic" in show(first, "greedy")


def test_without_gold_rounding_is_grey(labeller: Labeller) -> None:
    html = show(follow(labeller, list(examples().values())[-1]), "ad3")
    assert RIGHT not in html
    assert PLAIN in html
    assert "the arguments that keep the constraints" in html


def test_gold_in_other_names_is_not_held_against_a_system(first: Followed) -> None:
    renamed = Followed(**{**vars(first), "roles": tuple(f"x{role}" for role in first.roles)})
    assert RIGHT not in show(renamed, "ad3")


def test_words_of_a_visitor_stay_words(labeller: Labeller) -> None:
    sentence = next(iter(examples().values()))
    html = show(follow(labeller, read(conllu_text(sentence).replace("persuade\tpersuade", "<b>\t<i>"))), "ad3")
    assert "<h4>&lt;b&gt;</h4>" in html
    assert "><b><" not in html
