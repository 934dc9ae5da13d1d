"""A model of one's own code by the command line: predict, evaluate, export and view with --build; and mistakes."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import spen as library
from spen.storage import load_weights, save_weights
from spen.tasks import bench
from spen.tasks.own import OwnModel
from spen.training import fit, joint
from tests.cli.world import MINE, spen

BUILD = ("--build", "mine:make_model")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, then a module, a run that `fit` wrote, and arrays."""
    folder = tmp_path_factory.mktemp("own-model")
    (folder / "mine.py").write_text(MINE)
    (folder / "other.py").write_text("def nothing():\n    return None\n\nraises = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        for name in ("mine", "other"):
            patch.delitem(sys.modules, name, raising=False)
        module: dict[str, Any] = {}
        exec(MINE, module)
        torch.manual_seed(0)
        x = torch.randn(40, 4)
        y = torch.nn.functional.one_hot(x[:, :3].argmax(-1), 3).float()
        loss = library.objectives.log_loss
        model = module["make_model"]()
        metric = module["accuracy"]
        fit(model, [joint(loss, epochs=2)], (x, y), (x, y), metric, out="run", higher_is_better=True, progress=False)
        np.savez("examples.npz", x=x.double().numpy(), y=y.numpy())  # float64 becomes the type of the weights
        np.save("x.npy", x.numpy())
        save_weights({"x": x}, Path("x.safetensors"))
        yield folder


def python_model() -> library.SPEN:
    import mine

    return library.SPEN.from_pretrained("run", build=mine.make_model)


@pytest.mark.usefixtures("place")
def test_arrays_are_predicted_in_every_format() -> None:
    for source, target in (("x.npy", "a.npy"), ("examples.npz", "a.npz"), ("x.safetensors", "a.safetensors")):
        answer = spen("predict", "run", source, "-o", target, *BUILD)
        assert (answer.status, answer.out) == (0, f"{target}\n"), answer.err
    expected = python_model()(torch.from_numpy(np.load("x.npy"))).output.detach()
    torch.testing.assert_close(torch.from_numpy(np.load("a.npy")), expected)
    torch.testing.assert_close(torch.from_numpy(np.load("a.npz")["y"]), expected)
    torch.testing.assert_close(load_weights(Path("a.safetensors"))["y"], expected)
    several = spen("predict", "run", "x.npy", "x.safetensors", "-o", "answers", *BUILD, "--json")
    assert json.loads(several.out)["written"] == ["answers/x.npy", "answers/x.safetensors"]


@pytest.mark.usefixtures("place")
def test_a_metric_of_ones_own_scores_the_model() -> None:
    answer = spen("evaluate", "run", *BUILD, "--metric", "mine:accuracy", "--data", "examples.npz", "--json")
    assert answer.status == 0, answer.err
    y = python_model()(torch.from_numpy(np.load("x.npy"))).output
    share = pytest.approx(
        (y.argmax(-1) == torch.from_numpy(np.load("examples.npz")["y"]).argmax(-1)).float().mean().item()
    )
    assert json.loads(answer.out) == {"model": "run", "data": "examples.npz", "examples": 40, "accuracy": share}
    metric = ("--metric", "torchmetrics:MeanSquaredError")
    lines = spen("evaluate", "run", *BUILD, *metric, "--data", "examples.npz").out.splitlines()
    assert lines[0] == "run on 40 examples of examples.npz"
    assert lines[1].startswith("  MeanSquaredError 0.")


@pytest.mark.usefixtures("place")
def test_it_is_exported_and_the_exported_folder_serves_again() -> None:
    answer = spen("export", "run", "mine.onnx", *BUILD, "--data", "examples.npz", "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["inputs"] == {"x": ["batch", 4]}
    x = np.load("x.npy")
    (y,) = onnxruntime.InferenceSession("mine.onnx").run(["y"], {"x": x})
    np.testing.assert_allclose(y, python_model()(torch.from_numpy(x)).output.detach(), atol=1e-5)
    assert spen("export", "run", "saved", *BUILD, "--about", "mine").out.startswith("saved: pretrained")
    assert json.loads(Path("saved/config.json").read_text())["about"] == "mine"
    assert spen("predict", "saved", "x.npy", "-o", "b.npy", *BUILD).status == 0
    np.testing.assert_allclose(np.load("b.npy"), y, atol=1e-5)


@pytest.mark.usefixtures("place")
def test_its_strategies_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_strategies", lambda: [library.gradients.Exact()])
    answer = spen("bench", "run", *BUILD, "--data", "examples.npz", "--batch", "3", "--repeats", "1", "--json")
    assert answer.status == 0, answer.err
    whole = json.loads(answer.out)
    assert (whole["task"], whole["batch"], whole["steps"], whole["fastest"]) == (None, 3, 3, "Exact()")


def test_several_arrays_are_a_dict_of_tensors(place: Path) -> None:
    opened = OwnModel(place / "run", "mine:make_model")
    np.savez(place / "two.npz", a=np.zeros((2, 3)), b=np.ones(2, dtype=np.int64), y=np.zeros(2))
    x, y = opened.read(place / "two.npz")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in x.items()} == {
        "a": (torch.float32, (2, 3)),
        "b": (torch.int64, (2,)),
    }
    assert y is not None
    assert y.shape == (2,)


@pytest.mark.usefixtures("place")
def test_the_page_has_a_tab_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="the viewer's extra is not installed")
    from spen.viewer import landscape, server
    from spen.viewer.own import OwnTab

    seen: list[str] = []
    monkeypatch.setattr(
        server, "listen", lambda app, listening: seen.extend(c["props"].get("label", "") for c in _components(app))
    )
    view = ("view", "run", "--port", "0", "--no-browser")
    answer = spen(*view, *BUILD, "--data", "examples.npz")
    assert answer.status == 0, answer.err
    assert {"Your model", "Energy landscape", "Example, 1 to 40"} <= set(seen)
    tab = OwnTab(OwnModel("run", "mine:make_model", data="examples.npz"))
    html = tab.show(2)
    assert html.count("<img data-t=") == 4
    assert 'alt="target"' in html
    assert "energy" in html
    tab.y = None
    assert 'alt="target"' not in tab.show(1)
    monkeypatch.setattr(landscape, "slice_energy", lambda *a, size, **k: _slice(*a, size=3, **k))
    assert "run on example 1: 3 steps, energy" in tab.landscape(1)
    for number in (0, 41, "x", None):
        with pytest.raises(ValueError, match="there are examples 1 to 40, not "):
            tab.show(number)


def _slice(*arguments: Any, **options: Any) -> Any:
    from spen.viewer.landscape import Slice

    return Slice(*(np.zeros((3, 3)) for _ in range(3)), np.zeros((4, 2)), np.zeros(4), 1.0)


def _components(app: Any) -> list[dict[str, Any]]:
    from starlette.testclient import TestClient

    return TestClient(app, base_url="http://127.0.0.1").get("/config").json()["components"]


SCORED = f"evaluate run {' '.join(BUILD)}"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("predict run x.npy -o y.npy", "run/config.json names no task: give --build module:function, your function"),
        ("predict gone x.npy -o y.npy --build mine:make_model", "gone is not a folder; --build opens the run folder"),
        ("predict run x.npy -o y.npy --build mine", "'mine' is no module:function"),
        ("predict run x.npy -o y.npy --build nothere:f", "or in the working directory: No module named 'nothere'"),
        ("predict run x.npy -o y.npy --build mine:gone", "module 'mine' has no attribute 'gone'"),
        ("predict run x.npy -o y.npy --build other:nothing", "other:nothing returned NoneType; it must return a spen."),
        ("predict run x.npy -o y.npy --build mine:accuracy", "do not fit the builder: accuracy() missing 2 required"),
        ("predict run x.npy --build mine:make_model", "give --out, a file for one input or a folder for several"),
        ("predict run x.npy -o y.txt --build mine:make_model", "y.txt should end in .npy or .npz or .safetensors"),
        ("predict run x.npy -o x.npy --build mine:make_model", "x.npy would be overwritten by the answer for x.npy"),
        ("predict run mine.py -o y.npy --build mine:make_model", "mine.py is no array file (.npy, .npz, .safetensors)"),
        ("predict run code.npy -o y.npy --build mine:make_model", "code.npy is no array file"),
        ("predict run objects.npz -o y.npy --build mine:make_model", "objects.npz is no array file"),
        ("predict run uneven.npz -o y.npy --build mine:make_model", "need one row per example, and as many each, not"),
        ("predict run y.npz -o y.npy --build mine:make_model", "y.npz has no inputs: give it an array x"),
        ("predict run x.npy -o y.npy --build mine:make_model --peak 1", "--peak is an option of denoising, not of a m"),
        (SCORED, "a model of your own needs --metric module:function and --data FILE with arrays x and y"),
        (f"{SCORED} --metric mine:accuracy --data x.npy", "x.npy has no array y, the targets that mine:accuracy compa"),
        (
            f"{SCORED} --metric mine:accuracy --split dev",
            "--split is for data of a task; a model of your own is scored",
        ),
        ("evaluate dp-3 --metric mine:accuracy", "--metric is for a model of your own, opened with --build"),
        ("export run y.onnx --build mine:make_model", "this needs examples of the input: give --data FILE with an arr"),
        ("bench run --build mine:make_model", "this needs examples of the input: give --data FILE with an array x of"),
        ("bench dp-3 --data x.npy", "--data is for a model of your own, opened with --build"),
        ("export dp-3 y.onnx --data x.npy", "--data is for a model of your own, opened with --build"),
        ("view run --build mine:make_model", "--build needs one run folder, and --data FILE with an array x"),
        ("view --data x.npy", "--data is for a model of your own, opened with --build"),
    ],
)
def test_mistakes_end_in_one_line(command: str, line: str, place: Path) -> None:
    if not (place / "code.npy").exists():
        (place / "code.npy").write_bytes(pickle.dumps(_Trap()))
        np.savez(place / "objects.npz", x=np.array([_Trap()], dtype=object))
        np.savez(place / "uneven.npz", x=np.zeros((2, 4)), y=np.zeros(3))
        np.savez(place / "y.npz", y=np.zeros(3))
    answer = spen(*command.split())
    assert answer.status == 2, answer
    assert len(answer.err.strip().splitlines()) == 1, answer.err
    assert line in answer.err
    assert not (place / "trapped").exists(), "no pickle is loaded"


class _Trap:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return (open, ("trapped", "w"))
