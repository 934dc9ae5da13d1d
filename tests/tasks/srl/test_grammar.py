"""The built-in corpus: seeded, constrained, varied, and not to be solved arc by arc."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.features import arc_features
from spen.tasks.srl.grammar.corpus import GENRES, make_corpus, make_sentence
from spen.tasks.srl.sentences import check_tree, column_of, is_core


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.sampled_from(GENRES))
def test_every_sentence_keeps_the_constraints(seed: int, number: int, genre: str) -> None:
    sentence = make_sentence(seed, number, genre)
    check_tree(sentence.heads, "grammar", range(len(sentence)))
    assert sentence.genre == genre
    assert sentence.propositions
    for proposition in sentence.propositions:
        column_of(proposition.pieces, len(sentence))  # raises where pieces overlap
        core = [a.role for a in proposition.arguments if is_core(a.role)]
        assert len(core) == len(set(core))
        assert sentence.xpos[proposition.predicate].startswith("VB")
        for argument in proposition.arguments:
            assert sentence.upos[argument.end - 1] != "PUNCT"


def test_seeds_genres_and_size() -> None:
    corpus = make_corpus(12, seed=3)
    assert corpus == make_corpus(12, seed=3)
    assert corpus != make_corpus(12, seed=4)
    assert corpus[:6] == make_corpus(6, seed=3), "a longer corpus begins with the shorter one"
    assert {s.genre for s in make_corpus(6, genres=("court",))} == {"court"}
    with pytest.raises(ValueError, match="the grammar has no genre 'sea'; choose from farm, court, harbour"):
        make_corpus(1, genres=("sea",))
    with pytest.raises(ValueError, match="a corpus needs a genre; choose from farm, court, harbour"):
        make_corpus(1, genres=())


def test_it_has_all_its_constructions() -> None:
    corpus = make_corpus(400)
    relations = Counter(r for s in corpus for r in s.deprels)
    roles = Counter(a.role for s in corpus for p in s.propositions for a in p.arguments)
    for relation in ("nsubj:pass", "obl:agent", "xcomp", "acl:relcl", "conj", "parataxis", "iobj", "aux", "advmod"):
        assert relations[relation] >= 10, relation
    for role in ("A0", "A1", "A2", "R-A0", "R-A1", "C-A1", "AM-TMP", "AM-LOC", "AM-MNR", "AM-MOD", "AM-NEG"):
        assert roles[role] >= 10, role


def test_equal_arcs_have_different_roles() -> None:
    """The error no classifier of arcs can avoid: the same words, path and relation under several roles."""
    corpus = make_corpus(400)
    rules = CandidateRules.fit(corpus)
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    arcs = 0
    for sentence in corpus:
        candidates = rules(sentence)
        gold = [{(a.start, a.end): a.role for a in p.arguments} for p in sentence.propositions]
        labels = [roles.get(c[:2], "") for roles, found in zip(gold, candidates, strict=True) for c in found]
        for label, arc in zip(labels, arc_features(sentence, candidates), strict=True):
            # Lemmas of predicate and argument, path, voice and position, relation and marker.
            key = tuple(arc.values[i] for i in (1, 4, 10, 13, 14, 24))
            seen[key][label] += 1
            arcs += 1
    unavoidable = sum(sum(c.values()) - max(c.values()) for c in seen.values())
    assert unavoidable / arcs > 0.04
