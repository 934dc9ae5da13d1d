"""CoNLL-2005: merged files, folders as distributed, props alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.formats.conll2005 import props_text, read_conll2005, read_props, write_props
from spen.tasks.srl.sentences import Argument, BadCorpus, Proposition, Props, Sentence

from .small import write_columns
from .strategies import props, sentences

FOLDERS = {
    "words": ("words",),
    "synt.cha": ("tags", "syntax"),
    "dependencies": ("lemmas", "upos", "heads", "deprels"),
    "props": ("props",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conll")


@given(st.lists(props(), max_size=4))
def test_props_round_trip(folder: Path, drawn: list[Props]) -> None:
    for name in ("p.props", "p.props.gz"):
        write_props(folder / name, drawn)
        assert read_props(folder / name) == drawn


@given(st.lists(sentences(), min_size=1, max_size=3))
def test_folders_round_trip(folder: Path, drawn: list[Sentence]) -> None:
    for kind, columns in FOLDERS.items():
        write_columns(folder / "train" / kind / f"train.{kind}.gz", drawn, columns)
    assert read_conll2005(folder / "train") == [replace(s, sent_id="") for s in drawn]


def test_props_have_the_shared_task_s_widths() -> None:
    verb = Proposition(1, "morph", (Argument(0, 1, "A1"), Argument(1, 2, "V")))
    lines = props_text([Props(2, (verb,))]).split("\n")
    assert lines == ["-" + " " * 28 + "(A1*)", "morph" + " " * 25 + "(V*)", "", ""]


def test_several_sections_and_the_first_trees(tmp_path: Path) -> None:
    for section, word in (("02", "a"), ("03", "b")):
        for name, text in (("words", word), ("synt.cha", "X (S*)"), ("synt.col2", "Y (NP*)"), ("props", "-")):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"train.{section}.{name}").write_text(text + "\n\n")
    first, second = read_conll2005(tmp_path)
    assert (first.words, second.words, first.xpos, first.parse) == (("a",), ("b",), ("X",), ("(S*)",))
    (tmp_path / "props" / "train.03.props").unlink()
    with pytest.raises(BadCorpus, match=r"train.03.props:0: the file is missing, and train.03.words needs it"):
        read_conll2005(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a DT *\n", "1: 3 columns where words, tags, syntax, props were expected"),
        ("a DT * -\nb NN * - *\n", "2: 5 columns where the sentence began with 4"),
        (
            "\na DT * go (V*)\nb NN * go *\n",
            "2: 2 predicates but 1 columns of arguments; a token that is no predicate has - in the first",
        ),
        ("a DT * - (V*\nb NN * go *\n", "1: (V* is never closed in its sentence"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(BadCorpus) as error:
        read_conll2005(path)
    assert str(error.value) == f"{path}:{message}"


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    for name, text in (("words", "a\nb\n\nc\n"), ("props", "-\n\n-\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"devel.24.{name}").write_text(text)
    words, props_file = tmp_path / "words" / "devel.24.words", tmp_path / "props" / "devel.24.props"
    with pytest.raises(BadCorpus) as error:
        read_conll2005(tmp_path)
    assert (
        str(error.value)
        == f"{props_file}:1: 1 tokens where {words}:1 has 2; both files need the same sentences and words"
    )
    props_file.write_text("-\n-\n")
    with pytest.raises(BadCorpus) as error:
        read_conll2005(tmp_path)
    assert str(error.value) == f"{props_file}:2: the file ends before {words}, which has another sentence at line 4"
    with pytest.raises(
        BadCorpus, match=r"the folder has no words/; `spen data make conll2005` makes them from the treebank"
    ):
        read_conll2005(tmp_path / "words")


def test_two_propositions_of_one_predicate_are_refused(tmp_path: Path) -> None:
    twice = Props(1, (Proposition(0, "a"), Proposition(0, "b")))
    with pytest.raises(ValueError, match="two propositions share the predicate at token 1"):
        write_props(tmp_path / "m.txt", [twice])
