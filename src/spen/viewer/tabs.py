"""What the tab of a task works with: the ``Page`` that it is given, and the ``LandscapeButton`` that it gives back.

    class CountingTab:                       # task.tab = "counting.tab:CountingTab"
        title = "Counting"

        def fill(self, page):
            model = gr.Dropdown(page.models(), label="System")
            run = gr.Button("Run", variant="primary")
            answer = page.hint("The answer appears here.")
            run.click(page.told(lambda name: count(page.open(name))), model, answer, **page.descent)
            return []

``title`` names the tab. ``fill`` makes Gradio's components. ``style``, if there is one, is CSS for them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec

import gradio as gr

import spen
from spen import tasks
from spen.tasks.task import Opened, Tab, Task
from spen.viewer import landscape
from spen.viewer.catalogue import Catalogue
from spen.viewer.iterates import mistake

__all__ = ["LandscapeButton", "Page", "hint", "load_tabs", "told"]

P = ParamSpec("P")
Tell = Callable[[float], None]
"""Hears which share of the work is done."""


@dataclass(frozen=True)
class LandscapeButton:
    """A button of the tab "Energy landscape": ``function(*values of the inputs, tell)`` answers with HTML."""

    label: str
    element_id: str
    inputs: Sequence[gr.components.Component]
    function: Callable[..., str]


def told(function: Callable[P, str]) -> Callable[P, str]:
    """A function whose errors are answers: a visitor's mistake becomes one sentence in the page.

    So does a failure of the program, whose traceback the terminal gets.
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


def hint(words: str, element_id: str | None = None) -> gr.HTML:
    """The place of an answer, with words on what will appear there."""
    return gr.HTML(f'<div class="hint">{words}</div>', apply_default_css=False, elem_id=element_id)


@dataclass(frozen=True)
class Page:
    """The page as the tab of one task sees it. Whatever a visitor sends is taken for wrong until it is checked.

    ``descent`` and ``light`` are options of Gradio's events. One descent runs at a time, whoever asks for it. What is
    light does not join the queue at all: queued requests are answered over a stream that is closed after the last
    answer, and a request that joins while it closes can lose its own.
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
    told = staticmethod(told)
    hint = staticmethod(hint)

    def models(self, *, runs_first: bool = False) -> list[str]:
        """Names of the task's models: of the package, then of finished runs, or the other way round."""
        return self.catalogue.models(self.task, runs_first=runs_first)

    def open(self, name: str) -> Opened:
        """The model of this name, as ``spen.models.open_model`` gives it. The few used last are kept."""
        return self.catalogue.open(self.task, name, what=f"{self.title.lower()} system")

    def uploaded(self, file: str) -> Path:
        """The path of a file that was dropped in; any other path is refused."""
        if not Path(file).resolve().is_relative_to(self.uploads.resolve()):
            raise ValueError("that file was not uploaded here; drop it in")
        return Path(file)

    def landscape(self, model: spen.SPEN, x: Any, *, size: int, what: str, tell: Tell | None = None) -> str:
        """The energy on a plane through the descent on x, a batch of one, at ``size`` × ``size`` points."""
        return landscape.show(model, x, size=size, what=what, tell=tell)


def load_tabs() -> list[tuple[Task, Tab]]:
    """A new tab for every task that has one, in the order of the tasks."""
    return [(task, _load(task.name, task.tab)) for task in tasks.every().values() if task.tab]


def _load(name: str, place: str) -> Tab:
    module, _, attribute = place.partition(":")
    try:
        tab: Tab = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"the tab {place!r} of the task {name!r} cannot be loaded: {error}") from error
    return tab
