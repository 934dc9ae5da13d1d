"""CoNLL-U: words of the tree in, verbs found, the rest counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from spen.tasks.srl.formats.conllu import COLUMNS, find_verbs, parse_conllu, read_conllu
from spen.tasks.srl.sentences import Argument, BadCorpus, Sentence

TEXT = """# sent_id = email-7
# text = They've gone home
1-2\tThey've\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t've\thave\tAUX\tVBP\t_\t3\taux\t_\t_
3\tgone\tgo\tVERB\tVBN\t_\t0\troot\t_\t_
3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
4\thome\thome\tADV\tRB\t_\t3\tadvmod\t_\t_

1\tGo\t-\tVERB\t_\t_\t0\troot\t_\t_
"""


def row(i: int, head: str, xpos: str = "NN") -> str:
    return f"{i}\tw\tw\tNOUN\t{xpos}\t_\t{head}\tdep\t_\t_"


def test_words_verbs_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "s.conllu"
    path.write_text(TEXT)
    found = read_conllu(path)
    first, second = found
    assert first.words == ("They", "'ve", "gone", "home")
    assert first.heads == (2, 2, -1, 2)
    assert (first.sent_id, second.sent_id) == ("email-7", "2")
    assert [(p.predicate, p.sense, p.pieces) for p in first.propositions] == [(2, "go", (Argument(2, 3, "V"),))]
    assert [p.sense for p in second.propositions] == ["go"], "a lemma of - would read as no predicate"


def test_verbs_by_penn_tag_or_else_by_universal_tag() -> None:
    columns = {"words": ("a", "b", "c"), "upos": ("VERB", "AUX", "NOUN"), "deprels": ("root", "cop", "obj")}
    assert find_verbs(Sentence(xpos=("VB", "NN", "NN"), **columns)) == [0]
    assert find_verbs(Sentence(xpos=("_", "_", "_"), **columns)) == [0, 1]
    # Whatever the words of a sentence are, a tag set is known by all of its tags: these hold no Penn verb.
    assert find_verbs(Sentence(xpos=("PRP", "MD", "."), **columns)) == []
    assert find_verbs(Sentence(xpos=("NNS", "MD", "."), **columns)) == []
    assert find_verbs(Sentence(xpos=("VVFIN", "NN", "NN"), **columns)) == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\tw\tw", f"f:1: 3 columns where {', '.join(COLUMNS[:-1])} were expected, separated by tabs"),
        (row(2, "0"), "f:1: token '2' where token 1 was expected"),
        (row(1, "_"), "f:1: head '_' is no number; labelling needs a dependency tree"),
        (row(1, "0") + "\n" + row(2, "0"), "f:2: the tree has 2 roots, and it needs exactly one"),
        (
            row(1, "0") + "\n" + row(2, "3") + "\n" + row(3, "2"),
            "f:2: token 2 never reaches the root: the tree has a cycle",
        ),
        ("# text = x\n", "f:1: a sentence without words"),
    ],
)
def test_malformed_text_is_named(text: str, message: str) -> None:
    with pytest.raises(BadCorpus) as error:
        parse_conllu(text, "f")
    assert str(error.value) == message


def test_a_multiword_token_does_not_shift_the_line_of_an_error() -> None:
    text = row(1, "0") + "\n2-3\tx" + "\t_" * 8 + "\n" + row(2, "0")
    with pytest.raises(BadCorpus, match=r"f:3: the tree has 2 roots"):
        parse_conllu(text, "f")
