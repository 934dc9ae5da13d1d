"""Tasks are found, not named: the registry, a task from outside that reaches every command, and a search for names."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import spen
from spen import tasks
from spen.models import open_model
from spen.tasks.task import Dataset, Listed, Task
from tests.cli.world import spen as run

ROOT = Path(spen.__file__).parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation" / "spen_segmentation.py"
TINY = ("--set", "width=3", "--set", "steps=2", "--set", "epochs=1", "--device", "cpu")


@pytest.fixture
def segmentation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """The example of the docs, registered as a stranger's program would."""
    described = importlib.util.spec_from_file_location("spen_segmentation", EXAMPLE)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    monkeypatch.setitem(sys.modules, "spen_segmentation", module)
    described.loader.exec_module(module)
    monkeypatch.setattr(tasks, "_registered", {})
    for name in [name for name in sys.modules if name.startswith("spen.cli.")]:  # help and options are made on import
        monkeypatch.delitem(sys.modules, name)
    whole = module.Segmentation.examples_of

    def few(self: object, data: str, split: str) -> tuple[object, object]:
        return tuple(part[:8] for part in whole(self, data, split))  # type: ignore[return-value]

    monkeypatch.setattr(module.Segmentation, "examples_of", few)
    yield tasks.register(module.TASK)
    for name in [name for name in sys.modules if name.startswith("spen.cli.")]:
        del sys.modules[name]


def test_a_task_from_outside_reaches_every_command(
    segmentation: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = json.loads(run("list", "--json").out)["recipes"]
    assert [r["name"] for r in listed if r["task"] == "segmentation"] == ["shapes"]
    assert "blobs        segmentation: disks and boxes" in run("data", "list").out
    trained = run("train", "segmentation/shapes", *TINY)
    assert trained.status == 0, trained.err
    assert trained.out.startswith("runs/blobs/shapes/seed-0: best development IoU 0.")
    folder = "runs/blobs/shapes/seed-0"
    scored = json.loads(run("evaluate", folder, "--json").out)
    assert scored["examples"] == 8
    assert 0 <= scored["IoU"] <= 1
    Image.fromarray((255 * np.random.default_rng(0).random((24, 24))).astype(np.uint8)).save("photo.png")
    longer = json.loads(run("evaluate", folder, "--steps", "4", "--restarts", "2", "--every", "8", "--json").out)
    assert (longer["examples"], longer["restarts"]) == (-(-scored["examples"] // 8), 2)
    assert run("predict", folder, "photo.png", "-o", "longer.png", "--steps", "3", "--start-noise", "0.5").status == 0
    answered = run("predict", folder, "photo.png", "-o", "mask.png")
    assert (answered.status, answered.out) == (0, "mask.png\n"), answered.err
    assert set(np.unique(np.asarray(Image.open("mask.png")))) <= {0, 255}
    assert "photo.png would be overwritten" in run("predict", folder, "photo.png", "-o", ".").err
    exported = run("export", folder, "shapes.onnx")
    assert exported.status == 0, exported.err
    saved = run("export", folder, "shapes")
    assert saved.status == 0, saved.err
    again = json.loads(run("evaluate", "shapes", "--json").out)
    assert again["IoU"] == scored["IoU"]
    benched = run("bench", "shapes", "--batch", "1", "--repeats", "1")
    assert benched.status == 0, benched.err
    assert "is the fastest" in benched.out


def test_a_task_from_outside_has_a_tab(segmentation: Task, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="the viewer's extra is not installed")
    from spen.viewer.catalogue import Catalogue
    from spen.viewer.page import build
    from spen.viewer.tabs import Page, load_tabs

    folder = tmp_path / "runs" / "one"
    opened = segmentation.fresh("shapes")
    assert opened.model is not None
    opened.model.save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    catalogue = Catalogue([tmp_path / "runs"])
    page = build(catalogue, tmp_path)
    labels = {component.label for component in page.blocks.values() if getattr(component, "label", None)}
    assert {"Segmentation", "Test image"} <= labels
    tab = next(tab for task, tab in load_tabs() if task is segmentation)
    assert Page(segmentation, tab.title, catalogue, tmp_path).models() == [str(folder)]
    show = next(f.fn for f in page.fns.values() if getattr(f.fn, "__name__", "") == "show" and f.name == "show")
    answer = show(str(folder), 0)
    assert answer.count('<img width="240" src="data:image/png') == 2


def test_mistakes_with_a_task_from_outside(segmentation: Task) -> None:
    for command, line in (
        ("train shapes --set width=wide", "width is a whole number, not 'wide'"),
        ("train shapes --set about=x", "recipe shapes has no option 'about'; it has width, steps, rate, epochs"),
        ("train shapes --data rooms", "there is no data set 'rooms' of segmentation; there are blobs"),
    ):
        answer = run(*command.split())
        assert (answer.status, line in answer.err) == (2, True), answer.err


def test_models_of_a_task_from_outside_are_opened_by_name(segmentation: Task, tmp_path: Path) -> None:
    opened = segmentation.fresh("shapes")
    assert opened.model is not None
    opened.model.save_pretrained(tmp_path)
    assert open_model(tmp_path).batch(2).shape == (2, 1, 24, 24)


class Empty(Task):
    name = "empty"
    recipes = {"nothing": Listed("nothing", "does nothing")}  # noqa: RUF012
    datasets = {"void": Dataset("void", "holds nothing")}  # noqa: RUF012

    def train(self, order: object) -> None:
        return None

    def open(self, saved: object, device: str = "cpu") -> object:
        pytest.fail("no test asks for it")

    def rebuild(self, **settings: object) -> object:
        pytest.fail("no test asks for it")


def test_a_name_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    first = tasks.register(Empty())
    assert tasks.find("empty") is first
    tasks.register(Empty())  # a module that is imported twice
    other = type("Other", (Empty,), {})
    with pytest.raises(ValueError, match="there is another task 'empty' already; give yours another name"):
        tasks.register(other())
    with pytest.raises(TypeError, match="a task is a spen.tasks.task.Task, not <class .*>; make an object of your"):
        tasks.register(Empty)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="there is no task 'chess'; there are denoising, srl, multilabel, reasoning, empty"
    ):
        tasks.find("chess")


def test_an_entry_point_is_a_task_and_a_broken_one_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("no module named moon")

    entries = [
        SimpleNamespace(name="empty", value="pkg:TASK", load=Empty),
        SimpleNamespace(name="moon", value="moon:TASK", load=broken),
    ]
    monkeypatch.setattr(tasks.metadata, "entry_points", lambda group: entries if group == "spen.tasks" else [])
    tasks._from_entry_points.cache_clear()
    with pytest.warns(UserWarning, match="the task 'moon' of moon:TASK cannot be loaded: no module named moon"):
        assert "empty" in tasks.every()
    monkeypatch.undo()
    tasks._from_entry_points.cache_clear()
    assert "empty" not in tasks.every()


def test_no_task_and_no_data_set_is_named_where_all_are_served() -> None:
    """In cli/, viewer/, export/ and tasks/*.py: neither as a name, nor as a text, nor as an import."""
    own = {name: task for name, task in tasks.every().items() if type(task).__module__.startswith("spen.")}
    names = {*own, *(data for task in own.values() for data in task.datasets)}
    found = []
    for folder in ("cli", "viewer", "export", "tasks"):
        for path in sorted((ROOT / folder).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                words: list[str] = []
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                    words = re.findall(r"[\w-]+", node.value)
                elif isinstance(node, ast.Name | ast.Attribute):
                    words = [node.id if isinstance(node, ast.Name) else node.attr]
                elif isinstance(node, ast.ImportFrom | ast.Import):
                    module = getattr(node, "module", None) or ""
                    words = [*module.split("."), *(alias.name for alias in node.names)]
                found += [f"{path.relative_to(ROOT)}:{node.lineno}: {word}" for word in words if word in names]
    assert found == []


def test_a_feed_forward_stage_is_exported_without_a_descent(
    segmentation: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an exported file answers is what the last stage's objective predicts."""
    from spen.objectives import Feedforward, binary_log_loss
    from spen.training import joint

    opened = segmentation.fresh("shapes")
    assert opened.exportable().descend
    stages = [joint(Feedforward(binary_log_loss), epochs=1)]
    monkeypatch.setattr(type(segmentation), "stages", lambda self, system: stages)
    assert not opened.exportable().descend
    assert opened.model is not None
    x = opened.batch(2)
    assert opened.answer(x).allclose(opened.model(x).start)  # type: ignore[attr-defined]


def test_a_task_that_reads_files_must_write_them(
    segmentation: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(segmentation), "write")
    Image.new("L", (24, 24)).save(tmp_path / "photo.png")
    with pytest.raises(ValueError, match="the task segmentation reads files and writes none: give its class a method"):
        list(segmentation.fresh("shapes").predict([tmp_path / "photo.png"], tmp_path / "mask.png"))
