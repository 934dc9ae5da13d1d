"""Features of arcs, their integers, and the arrays they are kept in."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.features import (
    PADDING,
    SIMPLE_TEMPLATES,
    SLOTS,
    TEMPLATES,
    UNKNOWN,
    WORD_SLOTS,
    FeatureSpace,
    arc_features,
)
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Argument, Proposition, Sentence

CORPUS = make_corpus(150)
RULES = CandidateRules.fit(CORPUS)
SPACE = FeatureSpace.fit(CORPUS, RULES)
ENCODED = encode(CORPUS, RULES, SPACE)


def example() -> Sentence:
    """The old letter was sent to Ann ."""
    return Sentence(
        words=("The", "old", "letter", "was", "sent", "to", "Ann", "."),
        lemmas=("the", "old", "letter", "be", "send", "to", "Ann", "."),
        upos=("DET", "ADJ", "NOUN", "AUX", "VERB", "ADP", "PROPN", "PUNCT"),
        xpos=("DT", "JJ", "NN", "VBD", "VBN", "IN", "NNP", "."),
        heads=(2, 2, 4, 4, -1, 6, 4, 4),
        deprels=("det", "amod", "nsubj:pass", "aux:pass", "root", "case", "obl", "punct"),
        propositions=(Proposition(4, "send", (Argument(0, 3, "A1"), Argument(4, 5, "V"), Argument(5, 7, "A2"))),),
    )


def values(sentence: Sentence, start: int, end: int) -> dict[str, str]:
    candidates = CandidateRules()(sentence)
    for candidate, arc in zip(candidates[0], arc_features(sentence, candidates), strict=True):
        if candidate[:2] == (start, end):
            assert len(arc.values) == SLOTS
            assert len(arc.words) == len(WORD_SLOTS)
            words = {slot: sentence.words[i] if i >= 0 else "" for slot, i in zip(WORD_SLOTS, arc.words, strict=True)}
            named = dict(zip(TEMPLATES[:-2], arc.values, strict=False))
            bags = {"p.dependent": arc.values[-8:-4], "a.dependent": arc.values[-4:]}
            return named | {k: " ".join(v) for k, v in bags.items()} | {f"word.{k}": v for k, v in words.items()}
    raise AssertionError("no such candidate")


def test_the_features_of_an_arc() -> None:
    subject = values(example(), 0, 3)
    assert subject["p.voice"] == "passive"
    assert subject["p.frame"] == "nsubj:pass.obl"
    assert subject["p.dependent"].split() == ["nsubj:pass:", "aux:pass:", "obl:to"]
    assert (subject["a.lemma"], subject["a.tag"], subject["a.relation"]) == ("letter", "NN", "nsubj:pass")
    assert (subject["path"], subject["route"], subject["distance"]) == ("vnsubj:pass", "vnsubj:pass", "<1")
    assert subject["voice+position"] == "passive<"
    assert (subject["a.left"], subject["a.right"]) == ("det:the", "")
    assert (subject["word.first"], subject["word.before"], subject["word.after"]) == ("The", "", "was")
    recipient = values(example(), 5, 7)
    assert (recipient["a.marker"], recipient["word.marker"], recipient["a.length"]) == ("to", "to", "2")
    assert (recipient["lemma+relation+marker"], recipient["position"]) == ("send obl to", ">")
    assert recipient["a.dependent"].split() == ["case:IN"]


def test_routes_climb_and_descend() -> None:
    control = Sentence(
        words=("Ann", "wanted", "to", "sing"), lemmas=("Ann", "want", "to", "sing"), xpos=("NNP", "VBD", "TO", "VB"),
        upos=("PROPN", "VERB", "PART", "VERB"), heads=(1, -1, 3, 1), deprels=("nsubj", "root", "mark", "xcomp"),
        propositions=(Proposition(3, "sing"),),
    )  # fmt: skip
    arc = values(control, 0, 1)
    assert (arc["route"], arc["route.length"], arc["verbs.between"]) == ("^xcompvnsubj", "2", "1")
    assert (arc["p.parent"], arc["p.marker"], arc["word.parent"]) == ("want/VBD", "to", "wanted")


def test_cut_offs_templates_and_extra_words_do_something() -> None:
    often = FeatureSpace.fit(CORPUS, RULES, min_count=20)
    assert often.size < SPACE.size
    extra = FeatureSpace.fit(CORPUS, RULES, extra_words=["Zebra", "the"])
    assert extra.words == (*SPACE.words, "zebra")
    simple = FeatureSpace.fit(CORPUS, RULES, templates=SIMPLE_TEMPLATES)
    assert simple.size < SPACE.size
    conjunctions = [i for i, name in enumerate(TEMPLATES[:-2]) if name not in SIMPLE_TEMPLATES]
    assert not encode(CORPUS[:5], RULES, simple).arc_features[:, conjunctions].any()
    with pytest.raises(ValueError, match="no template is called colour; TEMPLATES lists them all"):
        FeatureSpace.fit(CORPUS, RULES, templates=("colour",))


def test_integers_stay_inside_their_template_and_zero_is_padding() -> None:
    assert SPACE.words[:2] == (PADDING, UNKNOWN)
    assert SPACE.roles[0] == "O"
    assert ENCODED.arc_features.max() < SPACE.size
    edges = np.cumsum([1, *(len(v) for v in SPACE.features)])
    for slot in range(len(TEMPLATES) - 2):
        column = ENCODED.arc_features[:, slot]
        used = column[column > 0]
        assert ((used >= edges[slot]) & (used < edges[slot + 1])).all()


def test_the_unseen_is_unknown() -> None:
    odd = encode([example()], CandidateRules(), SPACE)
    lemma_slot = TEMPLATES.index("p.lemma")
    known = ENCODED.arc_features[:, lemma_slot]
    at = 1 + sum(len(v) for v in SPACE.features[: TEMPLATES.index("a.lemma")])
    ann = [i for i, (_, *a, _) in enumerate(odd.arcs.tolist()) if a == [5, 7, 6]]
    assert odd.arc_features[ann[0], TEMPLATES.index("a.lemma")] == at
    assert odd.words[6] == 1
    assert odd.arc_features[0, lemma_slot] in known


def test_a_space_survives_json() -> None:
    again = FeatureSpace.from_dict(json.loads(json.dumps(SPACE.to_dict())))
    assert again == SPACE
    with pytest.raises(ValueError, match=rf"the feature space has 1 templates, not {len(TEMPLATES)}; fit it again"):
        FeatureSpace.from_dict({"roles": ["O"], "features": [[]]})


def test_core_roles_are_marked() -> None:
    assert {SPACE.roles[i] for i in SPACE.core} == {"A0", "A1", "A2"}


def test_gold_arcs_decode_to_gold() -> None:
    predicted = []
    corpus = ArcCorpus(CORPUS, CandidateRules(), SPACE)
    encoded = corpus.encoded
    assert not encoded.uncovered.any()
    for i, sentence in enumerate(CORPUS):
        arcs = encoded.arcs[encoded.arc_offsets[i] : encoded.arc_offsets[i + 1]]
        labels = np.zeros((len(sentence.propositions), 200), dtype=int)
        for k in range(len(labels)):
            gold = arcs[arcs[:, 0] == k, 4]
            labels[k, : len(gold)] = gold
        predicted.append(corpus.decode(i, labels))
    result = score(CORPUS, predicted)
    assert (result.overall.excess, result.overall.missed) == (0, 0)


def test_gold_that_no_candidate_covers_is_counted() -> None:
    nothing = encode([example()], CandidateRules(frozenset()), SPACE)
    assert nothing.uncovered.tolist() == [2]
    assert nothing.arc_features.shape == (0, SLOTS)
