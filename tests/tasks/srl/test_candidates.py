"""Candidate spans: what the rules say they are, on drawn trees and on sentences by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from spen.tasks.srl.candidates import CandidateRules, Tree, propose
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.sentences import Argument, Proposition, Sentence

from .small import count_candidates
from .strategies import sentences


def parsed(text: str, *propositions: Proposition) -> Sentence:
    """`word/UPOS/head/relation` tokens, heads from 1."""
    rows = [token.rsplit("/", 3) for token in text.split()]
    words, upos, heads, deprels = zip(*rows, strict=True)
    return Sentence(
        words=words, lemmas=words, upos=upos, xpos=upos, heads=tuple(int(h) - 1 for h in heads), deprels=deprels,
        propositions=propositions,
    )  # fmt: skip


def spans(sentence: Sentence, predicate: int) -> set[str]:
    return {" ".join(sentence.words[c.start : c.end]) for c in propose(sentence, predicate)}


def descendants(sentence: Sentence, token: int) -> set[int]:
    found = {token}
    while more := {i for i, h in enumerate(sentence.heads) if h in found} - found:
        found |= more
    return found


@given(sentences(with_props=False))
def test_candidates_of_drawn_trees(sentence: Sentence) -> None:
    """Subtree spans are those of the descendants; candidates are proper spans, each once, and every subtree is one."""
    tree = Tree.of(sentence)
    for token in range(len(sentence)):
        below = descendants(sentence, token)
        assert (tree.first[token], tree.last[token]) == (min(below), max(below) + 1)
    for predicate in range(len(sentence)):
        candidates = propose(sentence, predicate, tree)
        found = {c[:2] for c in candidates}
        assert len(found) == len(candidates)
        for c in candidates:
            assert 0 <= c.start < c.end <= len(sentence)
            assert not c.start <= predicate < c.end
            assert c.path
        ancestor = predicate
        while ancestor != -1:
            for child in tree.children[ancestor]:
                span = (tree.first[child], tree.last[child])
                assert span in found or span[0] <= predicate < span[1]
            ancestor = sentence.heads[ancestor]


def test_arguments_of_ancestors_and_partial_subtrees() -> None:
    relative = parsed("the/DET/2/det dog/NOUN/5/nsubj that/PRON/4/nsubj barked/VERB/2/acl:relcl slept/VERB/0/root")
    assert "the dog" in spans(relative, 3), "the antecedent without its relative clause"
    control = parsed("Ann/PROPN/2/nsubj wanted/VERB/0/root to/PART/4/mark sing/VERB/2/xcomp ./PUNCT/2/punct")
    assert "Ann" in spans(control, 3)
    copula = parsed("it/PRON/4/nsubj is/AUX/4/cop a/DET/4/det dog/NOUN/0/root here/ADV/4/advmod ./PUNCT/4/punct")
    assert {"it", "a dog", "a dog here", "dog", "a dog here ."} <= spans(copula, 1)


def test_punctuation_is_trimmed_from_either_end() -> None:
    sentence = parsed("go/VERB/0/root ,/PUNCT/3/punct home/NOUN/1/obl ,/PUNCT/3/punct")
    assert spans(sentence, 0) >= {", home ,", ", home", "home"}
    without_upos = Sentence(words=sentence.words, heads=sentence.heads, deprels=sentence.deprels)
    assert spans(without_upos, 0) >= {", home ,", ", home", "home"}


def test_light_verbs_small_clauses_and_coordination() -> None:
    light = parsed("have/VERB/0/root a/DET/3/det look/NOUN/1/obj at/ADP/5/case it/PRON/3/nmod")
    assert {"look", "a look", "a look at it"} <= spans(light, 0)
    small = parsed("let/VERB/0/root us/PRON/1/obj go/VERB/1/xcomp ./PUNCT/1/punct")
    assert "us go" in spans(small, 0)
    both = parsed("buy/VERB/0/root and/CCONJ/3/cc sell/VERB/1/conj books/NOUN/3/obj")
    assert "books" in spans(both, 0)


def test_rules_keep_the_paths_that_pay() -> None:
    verb = Proposition(1, "see", (Argument(0, 1, "A0"), Argument(1, 2, "V")))
    with_obj = parsed("we/PRON/2/nsubj saw/VERB/0/root it/PRON/2/obj", verb)
    bare = parsed("we/PRON/2/nsubj saw/VERB/0/root", Proposition(1, "see"))
    once = CandidateRules.fit([with_obj, *[bare] * 9], min_count=1, min_rate=0)
    assert once.paths == {"vnsubj"}
    assert [[c[:2] for c in found] for found in once(with_obj)] == [[(0, 1)]]
    assert CandidateRules.fit([with_obj, *[bare] * 9], min_count=2, min_rate=0).paths == frozenset()
    assert CandidateRules.fit([with_obj, *[bare] * 9], min_count=1, min_rate=0.2).paths == frozenset()
    assert [c[:2] for c in CandidateRules()(with_obj)[0]] == [(0, 1), (2, 3)]
    assert CandidateRules()(parsed("oh/INTJ/0/root")) == []


def test_rules_learned_on_one_seed_serve_another() -> None:
    rules = CandidateRules.fit(make_corpus(400))
    predicates, arguments, candidates, covered = count_candidates(make_corpus(100, seed=1), rules)
    assert covered / arguments > 0.99
    assert candidates / predicates < 6


def test_a_sentence_without_a_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="sentence 'x' has no dependency tree, and candidates come from one"):
        propose(Sentence(words=("a",), sent_id="x"), 0)
