"""spen predict with the shipped role labeller: to a file, to the terminal, and what is asked when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spen import tasks
from spen.models import open_model
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


def test_json_without_a_file_asks_for_one(sentence: Path) -> None:
    done = spen("predict", "srl-ewt", str(sentence), "--json")
    assert done.status == 2
    assert done.err == "spen: --json prints the names of the files that were written; give --out as well\n"
