"""What the tab of a task uses: the ``Page`` that ``fill`` gets, and the ``LandscapeButton`` that it returns.

    class CountingTab:                       # task.tab = "counting.tab:CountingTab"
        title = "Counting"

        def fill(self, page):
            model = gr.Dropdown(page.models(), label="System")
            run = gr.Button("Run", variant="primary")
            answer = page.hint("The answer appears here.")
            run.click(page.report_errors(lambda name: count(page.open(name))), model, answer, **page.descent)
            return []

``title`` names the tab. ``fill`` makes Gradio's components. ``style``, if there is one, is CSS for them.
"""

from __future__ import annotations

import pkgutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec

import gradio as gr

from spen import tasks
from spen.tasks.task import Opened, Tab, Task
from spen.viewer import landscape
from spen.viewer.catalogue import Catalogue
from spen.viewer.iterates import mistake

__all__ = ["LandscapeButton", "Page", "hint", "load_tabs", "report_errors"]

P = ParamSpec("P")


@dataclass(frozen=True)
class LandscapeButton:
    """A button of the tab "Energy landscape": ``function(*values of the inputs, progress)`` returns HTML."""

    label: str
    element_id: str
    inputs: Sequence[gr.components.Component]
    function: Callable[..., str]


def report_errors(function: Callable[P, str]) -> Callable[P, str]:
    """The function, with its errors returned as one sentence of HTML.

    The traceback of an error that is not a visitor's mistake goes to the terminal.
    """

    @wraps(function)
    def answer(*arguments: P.args, **options: P.kwargs) -> str:
        try:
            return function(*arguments, **options)
        except (ValueError, OSError, ImportError) as error:
            return mistake(str(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return mistake(f"{type(error).__name__}: {error}; the terminal of `spen view` says where")

    return answer


def hint(text: str, element_id: str | None = None) -> gr.HTML:
    """The component that an answer goes into, with a text on what will appear there."""
    return gr.HTML(f'<div class="hint">{text}</div>', apply_default_css=False, elem_id=element_id)


@dataclass(frozen=True)
class Page:
    """The page as the tab of one task sees it. Everything that a visitor sends is checked.

    ``descent`` and ``light`` are options of Gradio's events. With ``descent``, one event runs at a time, for all
    visitors. With ``light``, an event bypasses the queue: queued requests are answered over a stream that is closed
    after the last answer, and a request that joins while it closes can lose its answer.
    """

    task: Task
    title: str
    catalogue: Catalogue
    uploads: Path
    """Where Gradio puts files that are dropped in."""

    descent: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"concurrency_id": "descent", "concurrency_limit": 1, "api_visibility": "private"}
    )
    light: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
    )
    report_errors = staticmethod(report_errors)
    hint = staticmethod(hint)

    def models(self, *, runs_first: bool = False) -> list[str]:
        """Names of the task's models: those of the package, then finished runs; ``runs_first`` reverses it."""
        return self.catalogue.models(self.task, runs_first=runs_first)

    def open(self, name: str) -> Opened:
        """The model of this name, as ``spen.models.open_model`` returns it; the most recently used are cached."""
        return self.catalogue.open(self.task, name, what=f"{self.title.lower()} system")

    def uploaded(self, file: str) -> Path:
        """The path of a file that was dropped in; any other path is refused."""
        if not Path(file).resolve().is_relative_to(self.uploads.resolve()):
            raise ValueError("that file was not uploaded here; drop it in")
        return Path(file)

    landscape = staticmethod(landscape.show)


def load_tabs() -> list[tuple[Task, Tab]]:
    """A new tab for every task that has one, in the order of the tasks."""
    return [(task, _load(task.name, task.tab)) for task in tasks.every().values() if task.tab]


def _load(name: str, place: str) -> Tab:
    try:
        tab: Tab = pkgutil.resolve_name(place)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"the tab {place!r} of the task {name!r} cannot be loaded: {error}") from error
    return tab
