"""spen export: formats by the name of the file, mistakes in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

from spen.builders import Origin
from spen.export import TOLERANCE
from spen.models import open_model
from spen.pretrained import write_config
from spen.tasks.multilabel.build import build_model
from spen.tasks.multilabel.recipes import find_recipe
from spen.tasks.multilabel.tables import Schema
from spen.training import Run, load_weights
from tests.cli.world import spen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def label_sets(folder: Path, recipe: str, hidden: tuple[int, ...] = (8,)) -> None:
    """A run folder whose data is not here."""
    small = replace(find_recipe(recipe), hidden=hidden, network=(8,))
    run = Run.begin(folder, small.describe(), 0)
    torch.manual_seed(0)
    model = build_model(small, Schema.numbered(20, 5))
    write_config(run.folder, model.origin)
    run.save(model.state_dict())


def test_label_sets_become_an_onnx_file(folder: Path) -> None:
    label_sets(folder / "run", "bibtex-end-to-end")
    answer = spen("export", "run", "sets.onnx", "--json")
    assert answer.status == 0, answer.err
    said = json.loads(answer.out)
    assert said["format"] == "onnx"
    assert said["inputs"] == {"x": ["batch", 20]}
    assert 0 < said["largest_difference"] < TOLERANCE
    session = onnxruntime.InferenceSession("sets.onnx")
    assert session.get_outputs()[0].shape == ["batch", 5]
    assert session.get_modelmeta().custom_metadata_map["recipe"] == "bibtex-end-to-end"


def test_label_sets_of_many_layers_say_how_many_inputs_there_are(folder: Path) -> None:
    label_sets(folder / "run", "bibtex-end-to-end", hidden=(8, 7, 6, 5))
    found = open_model("run").exportable()
    assert found.example(0).shape == (3, 20)
    assert found.model(found.example(0)).output.shape == (3, 5)


def test_a_folder_is_for_from_pretrained_and_serves_as_a_model(folder: Path) -> None:
    label_sets(folder / "run", "bibtex-feedforward")
    answer = spen("export", "run", "saved")
    assert answer.status == 0, answer.err
    assert answer.out == "saved: pretrained, 0.0 MB\n"
    answer = spen("export", "saved", "sets.pt2")
    assert answer.status == 0, answer.err
    assert answer.out.startswith("sets.pt2: torch.export, 0.")
    assert "inputs of other sizes are answered as by the model, to " in answer.out
    assert answer.out.endswith("  x (batch, 20)\n")


def test_half_precision_and_a_sentence_for_the_folder(folder: Path) -> None:
    label_sets(folder / "run", "bibtex-end-to-end")
    assert spen("export", "run", "small", "--half", "--about", "tags of papers").status == 0
    config = json.loads((folder / "small" / "config.json").read_text())
    assert config["about"] == "tags of papers"
    assert config["seed"] == 0
    weights = load_weights(folder / "small" / "model.safetensors")
    assert {w.dtype for w in weights.values() if w.dim() > 1} == {torch.float16}
    whole, half = (open_model(name).model for name in ("run", "small"))
    x = torch.rand(3, 20)
    assert torch.allclose(whole(x).output, half(x).output, atol=1e-2)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("export dp-3", "missing argument 'file'"),
        ("export dp-3 -", "an export is a binary file or several files, not for stdout: name a file or a folder"),
        ("export dp-3 model.pb", "model.pb should end in .onnx or .pt2, or in nothing for a folder"),
        ("export dp-3 model.onnx --compile", "--compile is for a .pt2 file, not for model.onnx"),
        ("export dp-3 model.onnx --half", "--half is for a folder, not for model.onnx"),
        ("export dp-3 model.onnx --about x", "--about is for a folder, not for model.onnx"),
        ("export dp-9 model.onnx", "'dp-9' is neither a run folder nor a model of the package (depth, dp-3"),
        ("export dp-3 full.onnx", "full.onnx is a folder; give the name of a file"),
        ("export dp-3 full", "full holds other files (note.txt); give a folder that is empty or new"),
        ("export dp-3 bert", "bert/config.json is of another library: its model_type is not 'spen'"),
        ("export dp-3 weights", "weights holds other files (model.safetensors); give a folder that is empty or new"),
        ("export full model.onnx", "full holds no model that can be opened: it has neither run.json nor config.json"),
        ("export stops model.onnx", "a descent that stops early (RelativeChange(0.0001)) cannot be exported"),
        ("export strange model.onnx", "there is no task 'chess'; there are denoising, srl, multilabel"),
    ],
)
def test_mistakes_end_in_one_line(folder: Path, command: str, line: str) -> None:
    (folder / "full.onnx").mkdir()
    (folder / "full").mkdir()
    (folder / "full" / "note.txt").touch()
    for name, file in (("bert", "config.json"), ("weights", "model.safetensors")):
        (folder / name).mkdir()
        (folder / name / file).write_text('{"model_type": "bert"}')
    label_sets(folder / "stops", "bibtex-implicit")
    write_config(folder / "strange", Origin("chess", {}))
    answer = spen(*command.split())
    assert answer.status == 2, answer
    assert len(answer.err.strip().splitlines()) == 1, answer.err
    assert line in answer.err
    assert not (folder / "model.onnx").exists()
