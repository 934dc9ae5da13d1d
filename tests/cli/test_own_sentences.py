"""From an empty folder to an exported model of one's own sentences, by the command line alone."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spen.tasks.srl.formats.conll2005 import props_text, read_props
from spen.tasks.srl.formats.conllu import conllu_text
from spen.tasks.srl.grammar.corpus import make_corpus
from tests.cli.world import spen
from tests.tasks.srl.small import write_columns

TINY = ["--set", "pretrain_epochs=1", "--set", "width=8", "--set", "word_dimensions=4", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Twenty sentences with roles, and a model that was trained on them for a few steps."""
    place = tmp_path_factory.mktemp("own")
    corpus = make_corpus(20)
    (place / "mine").mkdir()
    for split, part in (("train", corpus[:12]), ("dev", corpus[12:16]), ("test", corpus[16:])):
        (place / "mine" / f"{split}.conllu").write_text("".join(conllu_text(s) + "\n" for s in part))
        (place / "mine" / f"{split}.props").write_text(props_text(part))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = spen("train", "local", "--data", "mine", *TINY, "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["run"] == "runs/mine/local/seed-0"
        yield place


def test_evaluate(folder: Path) -> None:
    scores = json.loads(spen("evaluate", "runs/mine/local/seed-0", "--json").out)
    assert (scores["data"], scores["sentences"]) == ("mine", 4)
    elsewhere = json.loads(spen("evaluate", "srl-grammar", "--data", "mine", "--split", "dev", "--json").out)
    assert elsewhere["f1"]["ad3"] > 80


def test_conll2005_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEN_DATA", str(folder / "data"))
    place = folder / "data" / "srl" / "conll2005"
    kinds = {"words": ("words",), "dependencies": ("lemmas", "upos", "heads", "deprels"), "props": ("props",)}
    for number, split in enumerate(("train", "devel", "test.wsj", "test.brown")):
        for kind, columns in {**kinds, "synt.cha": ("tags", "syntax")}.items():
            write_columns(place / split / kind / f"{split}.{kind}.gz", make_corpus(8, seed=number), columns)
    done = spen("train", "local", "--data", "conll2005", *TINY)
    assert done.status == 0, done.err
    scores = json.loads(spen("evaluate", "runs/conll2005/local/seed-0", "--json").out)
    assert (scores["data"], scores["sentences"]) == ("conll2005", 8)


def test_predict_export_and_open_again(folder: Path) -> None:
    done = spen("predict", "runs/mine/local/seed-0", "mine/dev.conllu", "mine/test.conllu", "-o", "roles")
    assert done.status == 0, done.err
    assert done.out.split() == ["roles/dev.props", "roles/test.props"]
    assert [p.length for p in read_props(folder / "roles" / "dev.props")] == [len(s) for s in make_corpus(20)[12:16]]
    assert spen("score", "mine/dev.props", "roles/dev.props").status == 0
    assert spen("export", "runs/mine/local/seed-0", "packed").status == 0
    again = spen("predict", "packed", "mine", "-o", "again", "--device", "cpu")
    assert sorted(again.out.split()) == ["again/dev.props", "again/test.props", "again/train.props"]
    assert (folder / "again" / "dev.props").read_text() == (folder / "roles" / "dev.props").read_text()


def test_stdin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.BytesIO((folder / "mine" / "dev.conllu").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))
    piped = spen("predict", "srl-grammar", "-")
    assert piped.out == spen("predict", "srl-grammar", "mine/dev.conllu").out
    assert "4 sentences" in piped.err


def test_reproduce(folder: Path) -> None:
    done = spen("reproduce", "table2", "--data", "mine", "--rows", "local", "--seeds", "1", "--out", "t2", *TINY)
    assert done.status == 0, done.err
    assert json.loads((folder / "t2" / "mine" / "results.json").read_text())["about"]["data"] == "mine"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "train local --data empty",
            "empty has no train and no dev and no test sentences; put them there, for X each,",
        ),
        ("reproduce table2 --data empty", "empty has no train and no dev and no test sentences"),
        ("evaluate srl-grammar --data empty --split dev", "empty has no dev sentences"),
        (
            "predict srl-grammar plain.txt",
            "plain.txt:1: this is plain text, and roles need a parse in CoNLL-U: with Stanza",
        ),
        (
            "predict srl-grammar mine/dev.conllu empty/../mine/dev.conllu -o y",
            "mine/dev.conllu and empty/../mine/dev.conllu would both be written to y/dev.props; rename one",
        ),
        (
            "predict srl-grammar mine/dev.conllu -o mine/dev.conllu",
            "mine/dev.conllu would be overwritten by the answer",
        ),
        ("predict srl-grammar mine -o mine", "mine/dev.props would be overwritten by the answer for mine/dev.conllu"),
        ("train local --data other", "dev.props:1: 3 tokens where other/dev.conllu:2 has"),
    ],
)
def test_mistakes(folder: Path, command: str, line: str) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "plain.txt").write_text("Ann sold the boat.\n")
    (folder / "other").mkdir(exist_ok=True)
    for file in (folder / "mine").iterdir():
        (folder / "other" / file.name).write_text(file.read_text())
    (folder / "other" / "dev.props").write_text("-\n-\n-\n")
    answer = spen(*command.split())
    assert (answer.status, answer.out) == (2, "")
    assert len(answer.err.strip().splitlines()) == 1
    assert line in answer.err
