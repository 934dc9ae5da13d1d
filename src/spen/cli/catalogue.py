"""Names of recipes, data sets and models on the command line. This module imports nothing that is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spen import tasks

if TYPE_CHECKING:
    from spen.tasks.task import Task


def find_recipe(name: str, data: str = "") -> tuple[Task, str]:
    """(task, recipe) of a name: ``dp-3``, or ``TASK/RECIPE`` where two tasks have a recipe of that name.

    If several tasks have the recipe, the one that has the data set ``data`` is taken.
    """
    prefix, slash, short = name.rpartition("/")
    known = tasks.every()
    if slash:
        known = {prefix: tasks.find(prefix)}
    listed = [task for task in known.values() if short.partition(":")[0] in task.recipes]
    found = listed or [task for task in known.values() if task.has_recipe(short)]
    if not found:
        inside = f" of {prefix}" if slash else ""
        names = ", ".join(recipe for task in known.values() for recipe in task.recipes)
        raise ValueError(f"there is no recipe {short!r}{inside}; `spen list` shows them: {names}")
    if len(found) > 1:
        found = [task for task in found if data in task.datasets] or found
    if len(found) > 1:
        choices = " or ".join(f"{task.name}/{short}" for task in found)
        raise ValueError(f"{short!r} is a recipe of {' and of '.join(t.name for t in found)}; write {choices}")
    return found[0], short


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: recipes that begin so, with their descriptions."""
    every = [(task.name, listed) for task in tasks.every().values() for listed in task.recipes.values()]
    names = [listed.name for _, listed in every]
    called = [(x.name if names.count(x.name) == 1 else f"{task}/{x.name}", x.about) for task, x in every]
    return [(name, about) for name, about in called if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: data sets that begin so."""
    every = [d for task in tasks.every().values() for d in task.datasets.values()]
    return [(d.name, d.about) for d in every if d.trains and d.name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """For the shell: shipped models and run folders that begin so."""
    from spen.models import shipped

    runs = [str(path.parent) for path in Path("runs").rglob("config.json")] if Path("runs").is_dir() else []
    return [name for name in [*shipped(), *sorted(runs)] if name.startswith(incomplete)]
