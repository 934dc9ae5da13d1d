"""The TSV round trip, the benchmark's filter, and the join of the two sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.formats.ewt import benchmark, conll_role, make_ewt, read_tsv, tsv_text
from spen.tasks.srl.formats.folder import read_splits
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.sentences import Argument, BadCorpus, Proposition, Sentence, write_text

from .raw_ewt import PROPBANK, TREEBANK, as_tar
from .strategies import sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ewt")


@given(st.lists(sentences(), max_size=4))
def test_tsv_round_trip(folder: Path, drawn: list[Sentence]) -> None:
    write_text(folder / "x.tsv.gz", tsv_text(drawn))
    assert read_tsv(folder / "x.tsv.gz") == drawn


def test_the_built_in_corpus_is_written_and_read(tmp_path: Path) -> None:
    corpus = make_corpus(40)
    write_text(tmp_path / "x.tsv", tsv_text(corpus))
    assert read_tsv(tmp_path / "x.tsv") == corpus


@pytest.mark.parametrize(
    ("label", "role"),
    [
        ("ARG0", "A0"),
        ("ARGA", "AA"),
        ("ARGM-TMP", "AM-TMP"),
        ("R-ARGM-LOC", "R-AM-LOC"),
        ("C-ARG1-DSP", "C-A1"),
        ("V", "V"),
        ("C-V", "C-V"),
        ("A1", "A1"),
    ],
)
def test_labels_map_to_conll_2005(label: str, role: str) -> None:
    assert conll_role(label) == role


def test_the_benchmark_takes_verbs(tmp_path: Path) -> None:
    own = Argument(0, 1, "ARG0")
    sentence = Sentence(
        words=("a", "b", "c", "d"),
        lemmas=("a", "b", "c", "d"),
        upos=("X",) * 4,
        xpos=("NN", "VBZ", "VBN", "VB"),
        heads=(3, 3, 3, -1),
        deprels=("nsubj", "aux", "aux:pass", "root"),
        parse=("*",) * 4,
        propositions=(
            Proposition(0, "a.01", (Argument(1, 2, "ARG1"),)),
            Proposition(1, "b.01"),
            Proposition(2, "c.01", (own,)),
            Proposition(3, "d.01"),
        ),
        sent_id="x-1",
    )
    kept = benchmark(sentence).propositions
    assert [(p.predicate, [a.role for a in p.arguments]) for p in kept] == [(2, ["A0"]), (3, [])]
    for split in ("train", "dev", "test"):
        write_text(tmp_path / f"ewt-srl.{split}.tsv.gz", tsv_text([sentence]))
    assert read_splits(tmp_path)["dev"] == [benchmark(sentence)]


NAMES = "id, words, lemmas, upos, tags, heads, deprels, syntax, props"
ROW = "1\ta\ta\tX\tNN\t0\troot\t*\t-"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# sent_id = x\n1\ta\ta\n", f"2: 3 columns where {NAMES} were expected, separated by tabs"),
        (ROW + "\n" + ROW + "\t*\n", "2: 10 columns where the sentence began with 9"),
        (ROW.replace("1", "2"), "1: token '2' where token 1 was expected"),
        (ROW.replace("0", "-1"), "1: head '-1' is no number; labelling needs a dependency tree"),
        (ROW + "\n" + ROW.replace("1", "2"), "2: the tree has 2 roots, and it needs exactly one"),
        (ROW + "\n2\tb\tb\tX\tNN\t2\tdep\t*\t-", "2: token 2 never reaches the root: the tree has a cycle"),
        (ROW + "\t*", "1: 0 predicates but 1 columns of arguments; a token that is no predicate has - in the first"),
        (ROW[:-1] + "go\t(V*", "1: (V* is never closed in its sentence"),
        ("# sent_id = x\n", "1: a sentence without words"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(text)
    with pytest.raises(BadCorpus) as error:
        read_tsv(path)
    assert str(error.value) == f"{path}:{message}"


def test_a_tab_in_a_word_cannot_be_written() -> None:
    sentence = Sentence(words=("a\tb",), heads=(-1,), deprels=("root",), sent_id="x")
    with pytest.raises(ValueError, match="sentence 'x': token 1 has a tab or a line break in a column"):
        tsv_text([sentence])


def test_the_join(tmp_path: Path) -> None:
    splits, dropped = make_ewt(
        as_tar(TREEBANK, tmp_path / "ud.tar.gz", "UD-1/"), as_tar(PROPBANK, tmp_path / "pb.tar.gz")
    )
    assert [s.sent_id for s in splits["train"]] == ["email-one-1", "email-one-2", "email-one-3", "email-four-3"]
    first = splits["train"][0]
    assert first.words == ("Dogs", "saw", "cats")
    assert first.propositions == (Proposition(1, "see.01", (Argument(0, 1, "ARG0"), Argument(1, 2, "V"))),)
    assert dropped == [
        "train email-four-1: no sentence of email/00/four.xml.gold_skel has its length",
        "train email-four-2: no sentence of email/00/four.xml.gold_skel has its length",
        "dev email-two-2: no sentence of email/00/two.xml.gold_skel has its length",
        "test email-three-1: PropBank has no email/00/three.xml.gold_skel",
    ]


def test_what_the_join_lacks_is_named(tmp_path: Path) -> None:
    treebank, propbank = as_tar(TREEBANK, tmp_path / "ud.tar"), tmp_path / "pb.tar"
    with pytest.raises(BadCorpus, match=r"absent.tar.xz:0: not a readable archive"):
        make_ewt(tmp_path / "absent.tar.xz", treebank)
    with pytest.raises(BadCorpus, match=r"no data/google/ewt/\*.gold_skel in it; give the archive of the repository"):
        make_ewt(treebank, treebank)
    key, dev = "data/google/ewt/email/00/one.xml.gold_skel", "docs/evaluation/ewt.dev.txt"
    for changed, message in [
        ({dev: None}, r"docs/evaluation/ewt.dev.txt is missing, and it lists the documents of dev"),
        ({dev: "\nemail/00/nine.xml\n"}, r"ewt.dev.txt:2: the treebank has no email/nine.xml.conllu"),
        ({key: ("see.01", "-")}, r"one.xml.gold_skel:1: 0 predicates but 1 columns of arguments"),
        ({key: ("(ARG0*)", "(ARG0*")}, r"one.xml.gold_skel:2: '\(V\*\)' opens an argument while ARG0 is still open"),
        (
            {key: ("one 0 1 [WORD]", "")},
            r"one.xml.gold_skel:2: 5 columns where _, _, _, _, _, syntax, _, props were expected",
        ),
    ]:
        ((name, change),) = changed.items()
        files = {k: v for k, v in PROPBANK.items() if k != name}
        if change is not None:
            files[name] = PROPBANK[name].replace(*change) if isinstance(change, tuple) else change
        with pytest.raises(BadCorpus, match=message):
            make_ewt(treebank, as_tar(files, propbank))
    damaged = TREEBANK | {"not-to-release/sources/email/one.xml.conllu": "\n\udcff"}
    with pytest.raises(BadCorpus, match=r"one.xml.conllu:2: byte 0xff is not UTF-8"):
        make_ewt(as_tar(damaged, treebank), as_tar(PROPBANK, propbank))
