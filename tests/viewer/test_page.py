"""The page is made of the tabs that tasks bring, and knows no task itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gradio", reason="the viewer's extra is not installed")
import gradio as gr

import spen
from spen import models, tasks
from spen.models import SavedModel
from spen.tasks.task import Dataset, Listed, Opened, Task, Trained, TrainOrder
from spen.viewer import page as module
from spen.viewer.catalogue import Catalogue
from spen.viewer.page import build, style
from spen.viewer.server import make_app
from spen.viewer.tabs import LandscapeButton, Page, load_tabs, report_errors
from tests.viewer.serving import answers, button, new_client, press, served
from tests.viewer.worlds import Bowl, fake_run, model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio")
VIEWER = Path(module.__file__).parent


class OpenedBowl(Opened):
    def __init__(self, name: str) -> None:
        self.name, self.model = name, model(Bowl([1.0, 5.0], [0.0, 0.0]))


class BowlTask(Task):
    """From where in a bowl a marble starts to where it lies after four steps."""

    name = "bowl"
    tab: str | None = "tests.viewer.test_page:BowlTab"

    @property
    def recipes(self) -> Mapping[str, Listed]:
        return {}

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        return {}

    def train(self, order: TrainOrder) -> Trained | None:
        pytest.fail("no test asks for it")

    def rebuild(self, **settings: Any) -> spen.SPEN:
        pytest.fail("no test asks for it")

    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        return OpenedBowl(saved.name)


class BowlTab:
    title = "Marble in a bowl"
    style = ".marble { color: red; }"

    def fill(self, page: Page) -> list[LandscapeButton]:
        def run(name: str, start: float) -> str:
            found = page.open(name).model
            assert found is not None
            return f"it lies at {float(found(torch.tensor([[start, 1.0]])).outputs[-1][0, 0]):.4f}"

        def landscape(name: str, start: float, progress: Any) -> str:
            found = page.open(name).model
            assert found is not None
            return page.landscape(found, torch.tensor([[start, 1.0]]), size=5, what=name, progress=progress)

        inputs = [gr.Dropdown(page.models(), label="System"), gr.Number(2.0, label="Start")]
        answer = page.hint("The place appears here.", "place")
        gr.Button("Run", elem_id="roll").click(page.report_errors(run), inputs, answer, **page.descent)
        return [LandscapeButton("Of the bowl", "bowl-landscape", inputs, landscape)]


@pytest.fixture
def bowl() -> Iterator[Task]:
    task = tasks.register(BowlTask())
    yield task
    del tasks._registered[task.name]


@pytest.fixture
def trained(tmp_path: Path) -> str:
    run = fake_run(tmp_path / "runs" / "one", task="bowl")
    (run / "model.safetensors").touch()
    return str(run)


def titles(blocks: gr.Blocks) -> list[str]:
    return [c["props"]["label"] for c in blocks.config["components"] if c["type"] == "tabitem"]


def test_every_task_with_a_tab_is_on_the_page(bowl: Task, tmp_path: Path) -> None:
    assert titles(build(Catalogue(), tmp_path)) == [
        "Denoising",
        "Role labelling",
        "Sudoku",
        "Marble in a bowl",
        "Energy landscape",
        "Runs",
    ]
    assert ".marble { color: red; }" in style()


def test_without_tabs_there_are_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_tabs", list)
    assert titles(build(Catalogue(), tmp_path)) == ["Runs"]


def test_the_buttons_of_a_new_task_answer(bowl: Task, trained: str, tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    app = make_app(Catalogue([tmp_path / "runs"]), uploads)
    with served(app) as address, new_client() as client:
        for session, (name, words) in enumerate(
            {
                "roll": "it lies at 1.3122",  # 2 · 0.9⁴
                "bowl-landscape": f"{trained}: 4 steps, energy 4.5 → ",
            }.items()
        ):
            assert press(client, address, button(address, name), [trained, 2.0], str(session)).status_code == 200
            (answer,) = answers(client, address, 1, str(session))
            assert words in answer["output"]["data"][0]


def test_a_tab_opens_models_of_its_task_alone(bowl: Task, trained: str, tmp_path: Path) -> None:
    page = Page(bowl, "Marble in a bowl", Catalogue([tmp_path / "runs"]), tmp_path)
    assert page.models() == [trained]
    assert page.open(trained) is page.open(trained)
    with pytest.raises(ValueError, match="there is no marble in a bowl system 'dp-3' on this page"):
        page.open("dp-3")


def test_only_uploaded_files_are_read(bowl: Task, tmp_path: Path) -> None:
    page = Page(bowl, "Marble in a bowl", Catalogue(), tmp_path)
    assert page.uploaded(f"{tmp_path}/a.png") == tmp_path / "a.png"
    with pytest.raises(ValueError, match="that file was not uploaded here; drop it in"):
        replace(page, uploads=tmp_path / "uploads").uploaded(f"{tmp_path}/uploads/../a.png")


def test_errors_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: Exception) -> str:
        raise error

    assert report_errors(fail)(ValueError("a < b")) == '<div class="mistake" role="alert">a &lt; b</div>'
    assert capsys.readouterr().err == ""
    assert "ZeroDivisionError: by 0; the terminal of `spen view` says where" in report_errors(fail)(
        ZeroDivisionError("by 0")
    )
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["nowhere.tab:Tab", "tests.viewer.test_page:Missing", "no colon", ":"])
def test_a_tab_that_cannot_be_loaded_is_a_sentence(bowl: Task, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BowlTask, "tab", place)
    with pytest.raises(ValueError, match=f"the tab '{re.escape(place)}' of the task 'bowl' cannot be loaded: "):
        load_tabs()


def test_the_viewer_names_no_task_no_data_and_no_model() -> None:
    names = {*tasks.every(), *models.shipped(), *(data for task in tasks.every().values() for data in task.datasets)}
    names |= {tab.title for _, tab in load_tabs()}
    word = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])", re.IGNORECASE)
    for path in sorted(VIEWER.iterdir()):
        if path.suffix in (".py", ".css"):
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if word.search(line)]
            assert found == [], path.name


def test_the_viewer_imports_nothing_of_a_task() -> None:
    own = tuple(f"spen.tasks.{name}" for name in tasks._own())
    for path in sorted(VIEWER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
            assert not [name for name in names if name.startswith(own)], path.name


def test_tasks_import_neither_torch_nor_gradio() -> None:
    code = (
        "import sys; from spen import tasks; tasks.every(); print([m for m in ('torch', 'gradio') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
