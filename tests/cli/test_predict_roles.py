"""spen predict with the shipped role labeller: to a file, to the terminal, and what is asked when it cannot."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spen import tasks
from spen.models import open_model
from spen.tasks.srl.formats.conllu import read_conllu
from spen.tasks.srl.predict import Labeller
from tests.cli.world import spen

ROWS = [
    ("The", "the", "DET", "DT", 2, "det"),
    ("committee", "committee", "NOUN", "NN", 3, "nsubj"),
    ("gave", "give", "VERB", "VBD", 0, "root"),
    ("the", "the", "DET", "DT", 5, "det"),
    ("students", "student", "NOUN", "NNS", 3, "iobj"),
    ("a", "a", "DET", "DT", 7, "det"),
    ("prize", "prize", "NOUN", "NN", 3, "obj"),
    (".", ".", "PUNCT", ".", 3, "punct"),
]
ROLES = "[A0 The committee] [V gave] [A2 the students] [A1 a prize] ."
PROPS = ["(A0*", "*)", "(V*)", "(A2*", "*)", "(A1*", "*)", "*"]


@pytest.fixture
def sentence(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.conllu"
    lines = [f"{i}\t{w}\t{a}\t{u}\t{x}\t_\t{h}\t{d}\t_\t_" for i, (w, a, u, x, h, d) in enumerate(ROWS, 1)]
    path.write_text("\n".join([*lines, "", ""]), encoding="utf-8")
    return path


def test_the_shipped_model_labels_to_the_terminal_and_to_files(
    sentence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model("srl-ewt")
    monkeypatch.setattr(tasks.find("srl"), "open", lambda saved, device: opened)  # loading takes seconds
    done = spen("predict", "srl-ewt", str(sentence), "--format", "pretty")
    assert done.status == 0
    assert done.out.splitlines()[1].strip() == ROLES
    assert done.err.strip().endswith("1 sentences, 1 predicates")
    out = tmp_path / "out.props"
    done = spen("predict", "srl-ewt", str(sentence), "-o", str(out), "--json")
    assert json.loads(done.out) == {"model": "srl-ewt", "written": [str(out)]}
    columns = [line.split() for line in out.read_text(encoding="utf-8").splitlines() if line]
    assert [c[0] for c in columns] == ["-", "-", "give", *["-"] * 5]
    assert [c[1] for c in columns] == PROPS


def test_relations_of_another_scheme_are_named(
    sentence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Labeller.open("srl-grammar")
    monkeypatch.setattr(tasks.find("srl"), "open", lambda saved, device: opened)
    monkeypatch.setattr("spen.tasks.srl.predict.open_corpus", lambda name, wanted: (name, {"test": found}, None))
    told = (
        "srl-grammar was not trained on the relations dobj, which 1 of 8 words have, and misses their arguments: use "
        "the parser of its training (Universal Dependencies: Stanza or UDPipe), or train a model on such parses"
    )
    assert "not trained on" not in spen("predict", "srl-grammar", str(sentence)).err
    sentence.write_text(sentence.read_text(encoding="utf-8").replace("\tobj\t", "\tdobj\t"), encoding="utf-8")
    found = read_conllu(sentence)
    assert spen("predict", "srl-grammar", str(sentence)).err == f"{told}\n1 sentences, 1 predicates\n"
    assert told in spen("evaluate", "srl-grammar", "--data", "mine").err
    with pytest.warns(UserWarning, match=re.escape(told)):
        opened(found)


def test_rare_relations_and_subtypes_raise_no_alarm(sentence: Path) -> None:
    labeller = Labeller.open("srl-grammar")
    (known,) = read_conllu(sentence)
    changed = [replace(known, deprels=(*known.deprels[:-2], name, "punct")) for name in ("obj:lvc", "dobj")]
    assert labeller.other_relations([changed[0]]) == ""
    assert labeller.other_relations([changed[1]] + [known] * 6) == ""
    assert "which 1 of 48 words have" in labeller.other_relations([changed[1]] + [known] * 5)
    names = tuple(f"r{i}" for i in range(8))
    assert "the relations r0, r1, r2, r3, r4, r5 and 2 more, which 8 of" in labeller.other_relations(
        [replace(known, deprels=names)]
    )


def test_json_without_a_file_asks_for_one(sentence: Path) -> None:
    done = spen("predict", "srl-ewt", str(sentence), "--json")
    assert done.status == 2
    assert done.err == "spen: --json prints the names of the files that were written; give --out as well\n"
