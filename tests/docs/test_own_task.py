"""The page on tasks: its code runs, and its tables leave nothing out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spen import tasks
from spen.tasks.simple import SimpleTask
from spen.tasks.task import Opened, Task

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-task.md").read_text(encoding="utf-8")
ORDER = 'out=Path("runs/blobs/shapes/seed-0")'
SMALL = ', settings={"epochs": "1", "width": "2", "steps": "2"}, device="cpu"'


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples" / "segmentation")
    monkeypatch.delitem(sys.modules, "spen_segmentation", raising=False)
    monkeypatch.setattr(tasks, "_registered", {})
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    assert ORDER in blocks[0]
    for code in blocks:
        exec(code.replace(ORDER, ORDER + SMALL), {})
    printed = re.search(r"'IoU': ([\d.]+)", capsys.readouterr().out)
    assert printed is not None
    assert 0 <= float(printed[1]) <= 1


@pytest.mark.parametrize("kind", [SimpleTask, Task, Opened])
def test_every_member_of_a_task_is_in_the_page(kind: type) -> None:
    names = {name for name in vars(kind) if not name.startswith("_")} | set(vars(kind).get("__annotations__", ()))
    hidden = {"has_recipe", "default_data", "can_open", "unit", "system", "batch_size"}
    assert {name for name in names - hidden if f"`{name}" not in PAGE} == set()
