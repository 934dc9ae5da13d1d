"""Models of the package: packed from a run, opened by name, used from the command line."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.denoising.predict import load_system
from spen.tasks.shipped import about
from spen.tasks.srl import predict
from spen.tasks.srl.conllu import conllu_text, parse_conllu
from spen.tasks.srl.corpora import builtin_splits, prepare
from spen.tasks.srl.grammar import GENRES, make_sentence
from spen.tasks.srl.pack import main, pack
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import changed, find_recipe
from spen.tasks.srl.score import score
from spen.tasks.srl.training import train
from spen.training import load_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = prepare(builtin_splits(24), name="builtin")
    recipe = changed(find_recipe("spen"), ["pretrain_epochs=1", "clamped_epochs=1", "joint_epochs=1"])
    assert train(recipe, data, folder, progress=False) is not None
    return folder


def test_a_packed_run_answers_as_the_run_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spen" / "weights"
    folder.mkdir(parents=True)
    assert main([str(run), "mine", "--about", "a test", "--command", "pytest", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "mine.json")
    held = json.loads((folder / "mine.json").read_text(encoding="utf-8"))
    assert held["command"] == "pytest"
    assert held["about"] == "a test"
    assert held["data"] == "builtin"
    assert held["recipe"]["joint_epochs"] == 1
    weights = load_weights(folder / "mine.safetensors")
    assert {str(w.dtype) for w in weights.values() if w.dim() > 1} == {"torch.float16"}
    assert weights["minimizer.rule.rates.log"].dtype == torch.float32
    monkeypatch.setattr(predict, "check_model", lambda name: None)
    monkeypatch.setattr(predict, "about", lambda name: held)
    monkeypatch.setattr(predict.resources, "files", lambda package: tmp_path / "spen")
    opened, original = Labeller.open("mine"), Labeller.open(run)
    assert opened.recipe == original.recipe
    sentences = [make_sentence(3, n, "farm") for n in range(4)]
    assert opened(sentences) == original(sentences)


def test_packing_what_is_no_run_of_roles_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "x", "--about", "a", "--command", "c"]) == 2
    assert capsys.readouterr().err == f"{tmp_path} is not a run: it has no run.json\n"
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"task": "denoising"}}))
    with pytest.raises(ValueError, match="the run is of task 'denoising', not of semantic role labelling"):
        pack(tmp_path, "x", tmp_path, about="", command="")


def test_the_shipped_grammar_model_knows_the_grammar() -> None:
    """Fresh sentences, of a seed that training never had; the figure on its own test data is in its JSON."""
    labeller = Labeller.open("srl-grammar")
    sentences = [make_sentence(5, n, GENRES[n % 3]) for n in range(60)]
    assert score(sentences, labeller(sentences)).f1 > 85
    assert not labeller.feedforward


def test_the_shipped_grammar_model_is_small_and_says_how_it_was_made() -> None:
    weights = resources.files("spen") / "weights" / "srl-grammar.safetensors"
    assert len(weights.read_bytes()) < 1_500_000
    described = about("srl-grammar")
    assert described["task"] == "srl"
    assert described["command"] == "python docs/scripts/srl_grammar.py"


def test_a_model_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match="srl-grammar is a model of the task 'srl', not of denoising"):
        load_system("srl-grammar")
    with pytest.raises(ValueError, match="dp-3 is a model of the task 'denoising', not of role labelling"):
        Labeller.open("dp-3")
    with pytest.raises(ValueError, match="'srl-mars' is neither a run folder nor a model of the package"):
        Labeller.open("srl-mars")


@given(st.integers(0, 500), st.sampled_from(GENRES))
def test_conllu_is_read_back_as_it_was_written(number: int, genre: str) -> None:
    sentence = make_sentence(1, number, genre)
    (back,) = parse_conllu(conllu_text(sentence), "text").sentences
    for column in ("words", "lemmas", "upos", "xpos", "heads", "deprels", "sent_id"):
        assert getattr(back, column) == getattr(sentence, column)
    assert [p.predicate for p in back.propositions] == [p.predicate for p in sentence.propositions]
