"""Bracketed trees, parse bits, dependencies by head rules, and the words put back into CoNLL-2005."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.constituents import (
    Phrase,
    dependencies,
    parse_bits,
    parse_brackets,
    with_tree,
)
from spen.tasks.srl.formats.conll2005 import read_conll2005, read_props
from spen.tasks.srl.formats.penn import make_conll2005
from spen.tasks.srl.sentences import BadCorpus, check_tree

TREES = """
( (S
    (NP-SBJ-1 (DT The) (NN letter) )
    (VP (VBD was)
      (VP (VBN sent)
        (NP (-NONE- *-1) )
        (PP-CLR (TO to)
          (NP (NNP Ann) ))
        (PP (IN by)
          (NP-LGS (PRP him) ))))
    (. .) ))
( (S (NP-SBJ (PRP He) ) (VP (MD may) (VP (VB sing) (CC and) (VB dance) )) (. .) ))
"""
PROPS = """- (A1*
- *)
- *
send (V*)
- (A2*
- *)
- (A0*
- *)
- *

- (A0*) (A0*)
- (AM-MOD*) *
sing (V*) *
- * *
dance * (V*)
- * *
"""


def labels() -> st.SearchStrategy[str]:
    return st.sampled_from(("S", "NP", "VP", "PP", "SBAR", "X"))


TREE = st.recursive(
    st.builds(
        Phrase, st.sampled_from(("NN", "VB", "IN", ",", "CC")), st.just(()), st.text("ab", min_size=1, max_size=3)
    ),
    lambda parts: st.builds(Phrase, labels(), st.lists(parts, min_size=1, max_size=3).map(tuple)),
    max_leaves=10,
).filter(lambda tree: bool(tree.parts))


def bracketed(tree: Phrase) -> str:
    inside = tree.word if not tree.parts else " ".join(map(bracketed, tree.parts))
    return f"({tree.label} {inside})"


@given(st.lists(TREE, max_size=3))
def test_brackets_round_trip(trees: list[Phrase]) -> None:
    assert [tree for _, tree in parse_brackets("\n".join(f"( {bracketed(t)} )" for t in trees), "f")] == trees


@given(TREE)
def test_parse_bits_are_the_brackets_around_words(tree: Phrase) -> None:
    leaves = [f"({leaf.label} {leaf.word})" for leaf in tree.leaves()]
    bits = [bit.replace("*", leaf) for bit, leaf in zip(parse_bits(tree), leaves, strict=True)]
    assert "".join(bits) == bracketed(tree).replace(" (", "(")


@given(TREE)
def test_dependencies_are_a_tree(tree: Phrase) -> None:
    heads, relations = dependencies(tree)
    check_tree(heads, "f", range(len(heads)))
    assert [r == "root" for r in relations] == [h == -1 for h in heads]


def test_traces_and_function_tags_go() -> None:
    (line, first), (second_line, second) = parse_brackets(TREES, "f")
    assert (line, second_line) == (2, 12)
    assert [leaf.word for leaf in first.leaves()] == ["The", "letter", "was", "sent", "to", "Ann", "by", "him", "."]
    assert parse_bits(first)[:4] == ("(S(NP*", "*)", "(VP*", "(VP*")
    assert [leaf.label for leaf in second.leaves()] == ["PRP", "MD", "VB", "CC", "VB", "."]


def test_the_content_word_is_the_head() -> None:
    (_, first), (_, second) = parse_brackets(TREES, "f")
    heads, relations = dependencies(first)
    assert heads == (1, 3, 3, -1, 5, 3, 7, 3, 3)
    assert relations == ("det", "nsubj:pass", "aux:pass", "root", "case", "obl", "case", "obl", "punct")
    assert dependencies(second) == ((2, 2, -1, 2, 2, 2), ("nsubj", "aux", "root", "cc", "conj", "punct"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)\n", "f:1: the bracket opened here is never closed"),
        ("\n(NN a))", "f:2: a bracket closes that was never opened"),
        ("a (S", "f:1: 'a' stands outside any bracket"),
        ("(S (NN a) b)", "f:1: 'b' follows a finished part of its phrase"),
        ("(NN a b)", "f:1: 'b' follows a finished part of its phrase"),
        ("(NN a (NN b))", "f:1: 'a' and a bracket stand side by side in one phrase"),
    ],
)
def test_malformed_brackets_are_named(text: str, message: str) -> None:
    with pytest.raises(BadCorpus) as error:
        list(parse_brackets(text, "f"))
    assert str(error.value) == message


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    for section in ("02", "23"):
        folder = tmp_path / "ptb" / "wsj" / section
        folder.mkdir(parents=True)
        first, second = TREES.strip().split("\n( (S (NP")
        (folder / f"wsj_{section}01.mrg").write_text(first)
        (folder / f"WSJ_{section}02.MRG").write_text("( (S (NP" + second)
    return tmp_path / "ptb"


@pytest.fixture
def conll(tmp_path: Path) -> Path:
    for split, name in (("train", "train.02"), ("test.wsj", "test.wsj")):
        folder = tmp_path / "conll05" / split / "props"
        folder.mkdir(parents=True)
        (folder / f"{name}.props").write_text(PROPS)
    return tmp_path / "conll05"


def test_words_are_put_back(treebank: Path, conll: Path) -> None:
    made = make_conll2005(treebank, conll)
    words = conll / "train" / "words" / "train.02.words"
    assert made == {conll / "test.wsj" / "words" / "test.wsj.words": 2, words: 2}
    before = words.stat().st_mtime_ns
    first, second = (with_tree(s, "f", 1) for s in read_conll2005(conll / "train"))
    assert first.words == ("The", "letter", "was", "sent", "to", "Ann", "by", "him", ".")
    assert first.xpos[:3] == ("DT", "NN", "VBD")
    assert first.lemmas[3] == "send"
    assert first.upos == ("DET", "NOUN", "VERB", "VERB", "PART", "PROPN", "ADP", "PRON", "PUNCT")
    assert first.deprels[1] == "nsubj:pass"
    assert [s.propositions for s in (first, second)] == [
        p.propositions for p in read_props(conll / "train" / "props" / "train.02.props")
    ]
    assert make_conll2005(treebank, conll) == made
    assert words.stat().st_mtime_ns == before, "words that are there stay"


def test_what_does_not_fit_is_named(treebank: Path, conll: Path, tmp_path: Path) -> None:
    props = conll / "train" / "props" / "train.02.props"
    file = treebank / "wsj" / "02" / "wsj_0201.mrg"
    props.write_text(PROPS.replace("- *)\n- *\nsend", "- *)\nsend", 1))
    with pytest.raises(BadCorpus) as error:
        make_conll2005(treebank, conll)
    assert str(error.value) == f"{file}:1: 9 words, but sentence 1 of train.02.props has 8"
    props.write_text(PROPS.split("\n\n")[0])
    with pytest.raises(
        BadCorpus, match=r"WSJ_0202.MRG:1: the Treebank goes on after the 1 sentences of train.02.props"
    ):
        make_conll2005(treebank, conll)
    props.write_text(PROPS + "\n- *\n".replace(" *", ""))
    with pytest.raises(BadCorpus, match=r"train.02.props:0: 3 sentences, but section 02 of the Treebank has 2"):
        make_conll2005(treebank, conll)
    with pytest.raises(BadCorpus, match=r"no wsj_02NN.mrg or .parse below it; give the Treebank's folder"):
        make_conll2005(tmp_path / "conll05" / "train", conll)
    with pytest.raises(
        BadCorpus, match=r"no props folder below it; give the folder the shared task's archive unpacks to"
    ):
        make_conll2005(treebank, treebank)
    props.rename(props.with_name("other.props"))
    with pytest.raises(BadCorpus, match=r"other.props:0: the name has no section; expected train.02.props.gz"):
        make_conll2005(treebank, conll)
    props.with_name("other.props").rename(props.with_name("test.brown.props"))
    with pytest.raises(BadCorpus, match=r"the Brown test words are missing; they come with the shared task's tests"):
        make_conll2005(treebank, conll)
