"""Folders of one's own sentences, in every form; and parsed objects of other libraries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.constituents import with_tree
from spen.tasks.srl.corpora import open_corpus, without_genre
from spen.tasks.srl.formats.conll2005 import props_text, read_conll2005
from spen.tasks.srl.formats.conllu import PARSE_FIRST, as_sentences, conllu_text, parse_conllu
from spen.tasks.srl.formats.folder import find_splits, locate, read_splits
from spen.tasks.srl.formats.penn import make_conll2005
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.sentences import BadCorpus, Sentence, write_text
from tests.tasks.srl.strategies import sentences
from tests.tasks.srl.test_penn import PROPS, TREES

CORPUS = make_corpus(6)
SPLITS = ("train", "dev", "test")


def text(drawn: list[Sentence], *, props: bool = False) -> str:
    return "".join(conllu_text(s, props=props) + "\n" for s in drawn)


def without_parse(drawn: list[Sentence]) -> list[Sentence]:
    return [replace(s, parse=()) for s in drawn]


def write_beside(folder: Path) -> None:
    for split in SPLITS:
        write_text(folder / f"{split}.conllu.gz", text(CORPUS))
        write_text(folder / f"{split}.props", props_text(CORPUS))


def write_together(folder: Path) -> None:
    for split in SPLITS:
        write_text(folder / f"{split}.conllu", text(CORPUS, props=True))


@pytest.mark.parametrize("write", [write_beside, write_together])
def test_conllu_with_props(tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    assert read_splits(tmp_path) == dict.fromkeys(SPLITS, without_parse(CORPUS))
    assert set(read_splits(tmp_path, ("dev",))) == {"dev"}
    assert open_corpus(str(tmp_path))[0] == str(tmp_path)


@given(st.lists(sentences(), min_size=1, max_size=3))
def test_conllu_with_props_round_trips(drawn: list[Sentence]) -> None:
    assert parse_conllu(text(drawn, props=True), "f") == without_parse(drawn)


def test_conll2005_as_made(tmp_path: Path) -> None:
    """Props of the shared task and trees of the treebank, made into a corpus and read; Brown is a split of its own."""
    for split, name in (("train", "train.02"), ("devel", "devel.24"), ("test.wsj", "test.wsj")):
        (tmp_path / "st" / split / "props").mkdir(parents=True)
        (tmp_path / "st" / split / "props" / f"{name}.props").write_text(PROPS)
    for section in ("02", "23", "24"):
        (tmp_path / "ptb" / section).mkdir(parents=True)
        (tmp_path / "ptb" / section / f"wsj_{section}00.mrg").write_text(TREES)
    make_conll2005(tmp_path / "ptb", tmp_path / "st")
    for kind, cells in (
        ("words", "They\nsing\n"),
        ("synt.cha", "PRP (S(NP*)\nVBP (VP*))\n"),
        ("props", "- (A0*)\nsing (V*)\n"),
    ):
        (tmp_path / "st" / "test.brown" / kind).mkdir(parents=True)
        (tmp_path / "st" / "test.brown" / kind / f"test.brown.{kind}").write_text(cells)
    splits = read_splits(tmp_path / "st")
    assert {split: len(s) for split, s in splits.items()} == {"train": 2, "dev": 2, "test": 2, "brown": 1}
    first = splits["train"][0]
    assert first.heads == (1, 3, 3, -1, 5, 3, 7, 3, 3)
    assert (first.lemmas[3], first.upos[5], first.sent_id) == ("send", "PROPN", "train-1")
    (brown,) = without_genre(splits, "brown")["test"]
    assert (brown.heads, brown.deprels, brown.lemmas) == ((1, -1), ("nsubj", "root"), ("they", "sing"))


def test_merged_columns_and_words_with_brackets(tmp_path: Path) -> None:
    """X.conll has words, tags, syntax and props; a bracket among the words is no bracket of the tree."""
    (tmp_path / "train.conll").write_text("( -LRB- (S(PRN*) - *\nWe PRP (NP*) - (A0*)\nran VBD (VP*)) run (V*)\n")
    (sentence,) = read_splits(tmp_path, ("train",))["train"]
    assert sentence.words == ("(", "We", "ran")
    assert sentence.heads == (2, 2, -1)


def test_trees_from_phrases_are_refused_where_there_are_none(tmp_path: Path) -> None:
    for cells, problem in (
        ("a DT *) - *\n", "the syntax column of sentence 1 is no tree: a bracket closes that was never opened"),
        ("a DT x - *\n", "the syntax column of sentence 1 is no tree: 'x' stands outside any bracket"),
    ):
        (tmp_path / "m.conll").write_text(cells.replace("- *", "go (V*)"))
        (sentence,) = read_conll2005(tmp_path / "m.conll")
        with pytest.raises(BadCorpus) as error:
            with_tree(sentence, "f", 1)
        assert problem.split(":")[0] in str(error.value)
    with pytest.raises(BadCorpus, match=r"f:0: sentence 3 has no tree; add synt.\*/ or dependencies/"):
        with_tree(Sentence(("a",)), "f", 3)


def test_what_is_wrong_with_a_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match="has no train and no dev and no test sentences; put them there, for X each, as"
    ):
        find_splits(tmp_path)
    write_text(tmp_path / "train.conllu", text(CORPUS))
    with pytest.raises(ValueError, match="has no dev and no test sentences"):
        find_splits(tmp_path)
    with pytest.raises(BadCorpus, match=r"train.conllu:1: there are no roles: put train.props beside it, or its"):
        read_splits(tmp_path, ("train",))
    props = tmp_path / "train.props"
    write_text(props, props_text(CORPUS[1:]))
    length, other = len(CORPUS[1]), len(CORPUS[0])
    problem = f"{props}:1: {length} tokens where {tmp_path / 'train.conllu'}:2 has {other}"
    with pytest.raises(BadCorpus) as error:
        read_splits(tmp_path, ("train",))
    assert str(error.value) == f"{problem}; both files need the same sentences and words"
    write_text(props, props_text([replace(s, propositions=()) for s in CORPUS]))
    with pytest.raises(BadCorpus, match="no predicate has an argument, so there is nothing to learn or to score"):
        read_splits(tmp_path, ("train",))
    write_text(tmp_path / "train.conllu", "Ann sold the boat.\n")
    with pytest.raises(BadCorpus) as error:
        read_splits(tmp_path, ("train",))
    assert str(error.value) == f"{tmp_path / 'train.conllu'}:1: {PARSE_FIRST}"
    with pytest.raises(
        ValueError, match="there is no data set 'moon' for role labelling; there are builtin, ewt, conl"
    ):
        locate("moon")
    monkeypatch.setenv("SPEN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="conll2005 is not here; unpack the shared task's release into"):
        locate("conll2005")


@given(st.text(max_size=40))
def test_any_text_is_read_or_named(drawn: str) -> None:
    try:
        parse_conllu(drawn, "f")
    except BadCorpus as error:
        assert str(error).startswith("f:")  # noqa: PT017


def test_plain_text_is_told_how_to_parse_it() -> None:
    with pytest.raises(BadCorpus) as error:
        parse_conllu("Ann sold the boat.\nIt sank.\n", "f")
    assert str(error.value) == (
        "f:1: this is plain text, and roles need a parse in CoNLL-U: with Stanza, run "
        "`pip install spacy_conll[parsers]` and `parse-as-conll en stanza --input_file TEXT --output_file "
        "TEXT.conllu`; or with UDPipe `udpipe --tokenize --tag --parse MODEL.udpipe TEXT > TEXT.conllu`"
    )
    with pytest.raises(BadCorpus, match="f:1: columns of CoNLL-U are separated by tabs, not by blanks"):
        parse_conllu("1 a a X X _ 0 root _ _\n", "f")


# ── objects of other libraries ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Token:
    """The attributes of a spaCy Token that are read."""

    i: int
    text: str
    lemma_: str = ""
    pos_: str = ""
    tag_: str = ""
    dep_: str = ""
    is_space: bool = False
    head: Token = field(init=False)


class Doc:
    def __init__(self, sents: list[list[Token]], parsed: bool = True) -> None:
        self.sents, self.parsed = sents, parsed

    def has_annotation(self, name: str) -> bool:
        return self.parsed and name == "DEP"


def doc() -> Doc:
    ann, sold = Token(0, "Ann", "Ann", "PROPN", "NNP", "nsubj"), Token(1, "sold", "sell", "VERB", "VBD", "ROOT")
    blank, boats = Token(2, "\n", is_space=True), Token(3, "boats", "boat", "NOUN", "NNS", "dobj")
    go = Token(4, "Go", "go", "VERB", "VB", "ROOT")
    ann.head = blank.head = boats.head = sold.head = sold
    go.head = go
    return Doc([[ann, sold, blank, boats], [go]])


def test_a_doc_of_spacy() -> None:
    first, second = as_sentences([doc()])
    assert (first.words, first.heads, first.deprels) == (
        ("Ann", "sold", "boats"),
        (1, -1, 1),
        ("nsubj", "root", "dobj"),
    )
    assert [p.sense for s in (first, second) for p in s.propositions] == ["sell", "go"]
    with pytest.raises(ValueError, match="the Doc has no dependency parse; make it by a spaCy pipeline with a parser"):
        as_sentences(Doc([], parsed=False))


def test_a_doc_of_spacy_itself() -> None:
    spacy = pytest.importorskip("spacy")
    made = spacy.tokens.Doc(
        spacy.blank("en").vocab, words=["Ann", "left"], heads=[1, 1], deps=["nsubj", "ROOT"], tags=["NNP", "VBD"],
        pos=["PROPN", "VERB"], lemmas=["Ann", "leave"],
    )  # fmt: skip
    (sentence,) = as_sentences(made)
    assert (sentence.heads, [p.sense for p in sentence.propositions]) == ((1, -1), ["leave"])


class TokenList(list[dict[str, Any]]):
    """The method of conllu's TokenList that is read."""

    def serialize(self) -> str:
        return text(CORPUS[:1])


def test_a_token_list_and_what_is_none() -> None:
    (expected,) = parse_conllu(text(CORPUS[:1]), "f")
    assert as_sentences([TokenList()]) == [expected]
    assert as_sentences(CORPUS) == CORPUS
    with pytest.raises(
        TypeError, match="roles are found in parsed sentences, a spaCy Doc, .* not in str: parse it first"
    ):
        as_sentences("Ann sold the boat.")


def test_a_token_list_of_conllu_itself() -> None:
    conllu = pytest.importorskip("conllu")
    assert as_sentences(conllu.parse(text(CORPUS))) == parse_conllu(text(CORPUS), "f")
