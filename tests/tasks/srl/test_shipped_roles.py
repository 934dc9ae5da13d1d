"""The role labellers of the package: opened by name, small, and of no other task."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.models import find_model
from spen.tasks.srl.formats.conllu import conllu_text, parse_conllu
from spen.tasks.srl.grammar.corpus import GENRES, make_sentence
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.score import score


def test_the_shipped_grammar_model_knows_the_grammar() -> None:
    """Fresh sentences, of a seed that training never had; the figure on its own test data is in its JSON."""
    labeller = Labeller.open("srl-grammar")
    sentences = [make_sentence(5, n, GENRES[n % 3]) for n in range(60)]
    assert score(sentences, labeller(sentences)).f1 > 85
    assert not labeller.feedforward


def test_the_shipped_grammar_model_is_small_and_says_how_it_was_made() -> None:
    saved = find_model("srl-grammar")
    assert (saved.folder / "model.safetensors").stat().st_size < 1_500_000
    assert saved.task == "srl"
    assert json.loads((saved.folder / "config.json").read_text())["command"] == "python docs/scripts/srl_grammar.py"


def test_a_model_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match="dp-3 is a model of the task 'denoising', not of role labelling"):
        Labeller.open("dp-3")
    with pytest.raises(ValueError, match="'srl-mars' is neither a run folder nor a model of the package"):
        Labeller.open("srl-mars")


@given(st.integers(0, 500), st.sampled_from(GENRES))
def test_conllu_is_read_back_as_it_was_written(number: int, genre: str) -> None:
    sentence = make_sentence(1, number, genre)
    (back,) = parse_conllu(conllu_text(sentence), "text")
    for column in ("words", "lemmas", "upos", "xpos", "heads", "deprels", "sent_id"):
        assert getattr(back, column) == getattr(sentence, column)
    assert [p.predicate for p in back.propositions] == [p.predicate for p in sentence.propositions]
