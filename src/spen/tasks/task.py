"""What the command line, the viewer and the loaders know of a kind of problem: a ``Task``, and the values it holds.

A task is found by its name (``spen.tasks.find``). Those of the package are its subpackages; others are registered by
``spen.tasks.register(task)`` or by an entry point of the group ``spen.tasks``. Importing this imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spen.tasks.options import accelerator_of

if TYPE_CHECKING:
    from spen.export import Exportable
    from spen.model import SPEN
    from spen.models import SavedModel
    from spen.viewer.tabs import LandscapeButton, Page

__all__ = [
    "Command",
    "Dataset",
    "Listed",
    "Opened",
    "Option",
    "ReproduceOrder",
    "Reproduced",
    "Scores",
    "Tab",
    "Task",
    "TrainOrder",
    "Trained",
]

Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]
"""(things, how many, what they are) → the same things, counted for whoever watches."""


@dataclass(frozen=True)
class Listed:
    """A recipe as ``spen list`` shows it, with the published figure for it."""

    name: str
    about: str
    published: float | None = None


@dataclass(frozen=True)
class Option:
    """An option that a task adds to a command: ``--flag`` on the command line, ``name=`` in Python."""

    name: str
    type: Any  # float, int, str, bool, Path, or a Literal
    help: str
    flag: str = ""
    least: int | None = None  # the smallest number allowed

    @property
    def spelled(self) -> str:
        """As it stands on the command line."""
        return self.flag or f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Command:
    """A command that only one task has: ``function`` as typer takes it, ``examples`` for the end of its help."""

    name: str
    function: str  # "module:function", imported when the command line starts
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """A data set that has a name. ``folder`` is what it needs below a data folder; None if it is built in.

    ``fetch(folder, **options)`` downloads it and returns the files; ``make(source, out, **options)`` turns a download
    into the prepared form and returns {"folder": …, "sizes": {split: examples}}.
    """

    name: str
    about: str
    folder: str | None = None
    obtain: str = "put it there yourself, below the folder that SPEN_DATA names"
    licence: str = ""
    fetch: str = ""  # "module:function"
    make: str = ""
    fetch_options: tuple[Option, ...] = ()
    make_options: tuple[Option, ...] = ()
    trains: bool = True  # False: only fetched and made, another data set reads it

    def place(self) -> Path | None:
        """Where it lies; None if it is built in or not here."""
        from spen.tasks.locations import find_data

        if self.folder is None:
            return None
        try:
            return find_data(*self.folder.split("/"))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class TrainOrder:
    """What ``spen train`` was asked for: ``settings`` of --set as KEY=VALUE, ``options`` that the task has declared."""

    recipe: str
    data: str
    out: Path
    seed: int = 0
    devices: int = 1
    device: str = "auto"
    nodes: int = 1
    seconds: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # those that the task declares for train

    @property
    def fit_options(self) -> dict[str, Any]:
        """Its part of the arguments of ``spen.training.fit``."""
        common = {"seed": self.seed, "devices": self.devices, "nodes": self.nodes, "seconds": self.seconds}
        return {"accelerator": accelerator_of(self.device), **common}


@dataclass(frozen=True)
class Trained:
    """What a finished run reached on development data."""

    measure: str
    dev: float | None


@dataclass(frozen=True)
class Scores:
    """The metrics of a model on a split: for a program, and as lines for a person."""

    values: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ReproduceOrder:
    """What ``spen reproduce`` was asked for."""

    out: Path
    data: str = ""
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    jobs: int = 1
    device: str = "auto"
    seconds: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    dev_only: bool = False
    merge: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tell: Callable[[str], None] = print  # one line for each row as it ends


@dataclass(frozen=True)
class Reproduced:
    """``whole`` is what results.json holds, ``lines`` the table for a person, ``report`` the page with pictures."""

    whole: dict[str, Any]
    lines: tuple[str, ...]
    report: Path
    finished: bool


class Tab(Protocol):
    """A task's tab in the viewer. Its class is called without arguments, and may have a ``style``, which is CSS."""

    title: str

    def fill(self, page: Page) -> Sequence[LandscapeButton]:
        """Make Gradio's components inside of the open tab; returned are buttons for the tab of energy landscapes."""
        ...


class Opened(ABC):
    """A trained model of a task, whatever it was opened from: the package, a saved folder, a finished run."""

    name: str
    model: SPEN | None
    """None for a method without an energy."""

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        """The task's metrics on a split of ``data``, its own if not given."""
        raise ValueError(f"{self.name} cannot be scored by a command")

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        """Answer files; the paths that were written, one by one. Without ``out`` the answer goes to stdout."""
        raise ValueError(f"{self.name} predicts from Python alone; its task reads no files")

    def exportable(self) -> Exportable:
        """What ``spen export`` writes."""
        raise ValueError(f"{self.name} cannot be exported")

    def batch(self, size: int | None = None, **options: Any) -> Any:
        """Inputs of the model, on which strategies can be timed."""
        raise ValueError(f"{self.name} has no descent to differentiate")


class Task(ABC):
    """A kind of problem. ``name`` is that of its models' config.json, of its runs and of ``spen train NAME/recipe``."""

    name: str
    unit: str = "published"
    """What ``Listed.published`` is, as a heading of ``spen list``."""
    table: str | None = None
    """The name under which ``spen reproduce`` knows all rows of the task."""
    options: Mapping[str, tuple[Option, ...]] = {}
    """Options of the task by command: train, evaluate, predict, bench, reproduce."""
    commands: tuple[Command, ...] = ()
    tab: str | None = None
    """The task's ``Tab`` in the viewer, as "module:name"."""
    examples: Mapping[str, tuple[str, ...]] = {}
    """Command lines for the help of a command, by command."""

    @property
    @abstractmethod
    def recipes(self) -> Mapping[str, Listed]:
        """By name, in the order of the table."""

    @property
    @abstractmethod
    def datasets(self) -> Mapping[str, Dataset]:
        """By name; those that ``spen data`` lists."""

    def has_recipe(self, name: str) -> bool:
        """Whether ``train`` takes this name; a task may take more than it lists."""
        return name in self.recipes

    def default_data(self, recipe: str) -> str:
        """What a recipe is trained on if nothing is said."""
        return next(iter(self.datasets))

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:  # noqa: B027
        """Raise ValueError at a mistake that can be told before torch is imported."""

    @abstractmethod
    def train(self, order: TrainOrder) -> Trained | None:
        """Train into the run folder ``order.out``; None if the time was up."""

    def can_open(self, folder: Path) -> bool:
        """Whether a run has got so far that ``open`` takes its folder: it has weights."""
        return (folder / "model.safetensors").is_file()

    @abstractmethod
    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        """The model of a folder."""

    @abstractmethod
    def rebuild(self, **settings: Any) -> SPEN:
        """The model with fresh weights, from the settings that its config.json holds."""

    def fresh(self, recipe: str) -> Opened:
        """A recipe's model with fresh weights: what ``spen bench`` times where nothing was trained."""
        raise ValueError(f"{recipe} is a recipe of {self.name}, which builds no model without its data")

    def reproduce(self, order: ReproduceOrder) -> Reproduced:
        """Train and score every row of the task's table."""
        raise ValueError(f"{self.name} has no table to reproduce")
