"""Tasks: kinds of problems with recipes, data and metrics of their own, and the registry that finds them.

spen.tasks.find("denoising")
spen.tasks.register(MyTask())          # or an entry point of the group "spen.tasks"
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spen.model import SPEN
    from spen.tasks.task import Task

__all__ = ["every", "find", "register"]

_registered: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Let every command, the viewer and the loaders know a task. A name is given once; registering it again is fine."""
    from spen.tasks.task import Task

    if not isinstance(task, Task):
        raise TypeError(f"a task is a spen.tasks.task.Task, not {task!r}; make an object of your class")
    known = {**_own(), **_registered}.get(task.name)
    if known is not None and type(known) is not type(task):
        raise ValueError(f"there is another task {task.name!r} already; give yours another name")
    _registered[task.name] = task
    return task


def every() -> dict[str, Task]:
    """All tasks by name: those of the package, of entry points, and registered ones."""
    return {**_own(), **_from_entry_points(), **_registered}


def find(name: str) -> Task:
    """The task of this name; a name that nobody has registered gets the list."""
    known = every()
    if name not in known:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(known)}")
    return known[name]


def builders() -> dict[str, Callable[..., SPEN]]:
    """How the models of each task are built again from their config.json."""
    return {name: task.rebuild for name, task in every().items()}


@functools.cache
def _own() -> dict[str, Task]:
    """Subpackages with a module ``task``; the order is that of ``place``, then of the alphabet."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            found.append(importlib.import_module(f"{__name__}.{module.name}.task").TASK)
    return {task.name: task for task in sorted(found, key=lambda task: (task.table or "~", task.name))}


@functools.cache
def _from_entry_points() -> dict[str, Task]:
    found = {}
    for entry in metadata.entry_points(group="spen.tasks"):
        try:
            task = entry.load()
        except Exception as error:  # somebody else's package must not take every command away
            import warnings

            warnings.warn(f"the task {entry.name!r} of {entry.value} cannot be loaded: {error}", stacklevel=2)
            continue
        found[task.name] = task
    return found
