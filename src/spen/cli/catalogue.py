"""Everything that can be named on the command line: recipes, data sets, models. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TASKS = ("denoising", "srl", "multilabel")


@dataclass(frozen=True)
class Listed:
    """A recipe as `spen list` shows it."""

    task: str
    name: str
    unit: str
    paper: float | None
    about: str


def recipes() -> list[Listed]:
    """Every recipe of every task, in the order of the tables."""
    from spen.tasks.denoising.recipes import RECIPES as DENOISING
    from spen.tasks.multilabel.recipes import RECIPES as MULTILABEL
    from spen.tasks.srl.recipes import RECIPES as SRL

    listed = [Listed("denoising", r.name, "the paper's PSNR", r.paper, r.about) for r in DENOISING.values()]
    for s in SRL.values():
        paper = s.paper["ad3"].test if "ad3" in s.paper else None
        listed.append(Listed("srl", s.name, "the paper's test F1", paper, s.about))
    for m in MULTILABEL.values():
        listed.append(Listed("multilabel", m.name, "published test F1", m.published, f"{m.data}: {m.about}"))
    return listed


def find_recipe(name: str, data: str = "") -> tuple[str, str]:
    """(task, recipe) of a name: `dp-3`, or `srl/spen-best` where two tasks have a recipe of that name.

    `data` decides where the name alone does not: the built-in rooms are for denoising.
    """
    task, slash, short = name.rpartition("/")
    known = recipes()
    if slash and task not in TASKS:
        raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    base = short.partition(":")[0]  # roles: spen:steps=5 is the recipe spen with a change
    found = [r.task for r in known if r.name == base and task in ("", r.task)]
    if not slash and base not in {r.name for r in known} and base in _ablations():
        found = ["srl"]
    if not found:
        inside = f" of {task}" if slash else ""
        names = ", ".join(r.name for r in known if task in ("", r.task))
        raise ValueError(f"there is no recipe {short!r}{inside}; `spen list` shows them: {names}")
    if len(found) > 1:
        found = [t for t in found if data and data in data_names(t)] or found
    if len(found) > 1:
        choices = " or ".join(f"{t}/{short}" for t in found)
        raise ValueError(f"{short!r} is a recipe of {' and of '.join(found)}; write {choices}")
    return found[0], short


def _ablations() -> set[str]:
    from spen.tasks.srl.recipes import ABLATIONS

    return set(ABLATIONS)


@dataclass(frozen=True)
class DataSet:
    """A data set as `spen data list` shows it; `folder` is what it needs below a data folder, None if built in."""

    task: str
    name: str
    about: str
    folder: str | None
    get: str = ""

    def place(self) -> Path | None:
        """Where it lies; None if it is built in or not here."""
        from spen.tasks.locations import find_data

        if self.folder is None:
            return None
        try:
            return find_data(*self.folder.split("/"))
        except FileNotFoundError:
            return None


def data_sets() -> list[DataSet]:
    """Every data set that has a name."""
    from spen.tasks.denoising.recipes import REGIMES

    ewt = "spen data fetch ewt, then spen data make ewt"
    seven = "spen data fetch 7scenes, then spen data make 7scenes"
    yours = "put it there yourself, below the folder that SPEN_DATA names"
    sets = [
        DataSet("denoising", r.name, r.about, r.needs, seven if "redkitchen" in (r.needs or "") else yours)
        for r in REGIMES.values()
    ]
    return [
        *sets,
        DataSet("srl", "builtin", "sentences from a grammar, with trees and roles", None),
        DataSet("srl", "ewt", "English Web Treebank with PropBank's roles", "srl/ewt", ewt),
        DataSet("multilabel", "bibtex", "159 tags of 7,395 publications", "multilabel/bibtex.npz", yours),
        DataSet("multilabel", "delicious", "983 tags of 16,105 web pages", "multilabel/delicious.npz", yours),
    ]


def data_names(task: str) -> list[str]:
    """The names that --data takes for a task."""
    return [d.name for d in data_sets() if d.task == task]


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: recipes that begin so, with what they are."""
    names = [r.name for r in recipes()]
    listed = [(r.name if names.count(r.name) == 1 else f"{r.task}/{r.name}", r.about) for r in recipes()]
    return [(name, about) for name, about in listed if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: data sets that begin so."""
    return [(d.name, d.about) for d in data_sets() if d.name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """For the shell: shipped models and run folders that begin so."""
    from spen.tasks.shipped import shipped

    runs = [str(path.parent) for path in Path("runs").rglob("run.json")] if Path("runs").is_dir() else []
    return [name for name in [*shipped(), *sorted(runs)] if name.startswith(incomplete)]
