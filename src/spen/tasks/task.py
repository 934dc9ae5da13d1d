"""The interface of a kind of problem for the command line, the viewer and the loaders: a ``Task`` and its values.

A task is found by its name (``spen.tasks.find``). Those of the package are its subpackages; others are registered by
``spen.tasks.register(task)`` or by an entry point of the group ``spen.tasks``. Importing this imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
"""(items, their number, their name) → the same items, with a progress bar."""


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
        """The flag on the command line."""
        return self.flag or f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Command:
    """A command of one task: ``function`` is a typer command, ``examples`` are for the end of its help."""

    name: str
    function: str  # "module:function", imported when the command line starts
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """A data set with a name. ``folder`` is its path below the data folder; None if it is built in.

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
        """Its folder; None if it is built in or not found."""
        from spen.tasks.locations import find_data

        if self.folder is None:
            return None
        try:
            return find_data(*self.folder.split("/"))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class TrainOrder:
    """The arguments of ``spen train``: ``settings`` are those of --set, ``options`` those that the task declares."""

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
        """Arguments for ``spen.training.fit``."""
        several = {"devices": self.devices, "nodes": self.nodes}
        return {"accelerator": self.device, "seed": self.seed, "seconds": self.seconds, **several}


@dataclass(frozen=True)
class Trained:
    """The best development score of a finished run."""

    measure: str
    dev: float | None


@dataclass(frozen=True)
class Scores:
    """The metrics of a model on a split: ``values`` for --json, ``lines`` for the terminal."""

    values: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ReproduceOrder:
    """The arguments of ``spen reproduce``; ``log`` gets a line for each row when it ends."""

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
    log: Callable[[str], None] = print


@dataclass(frozen=True)
class Reproduced:
    """``whole`` is the content of results.json, ``lines`` the table for the terminal, ``report`` the HTML page."""

    whole: dict[str, Any]
    lines: tuple[str, ...]
    report: Path
    finished: bool


class Tab(Protocol):
    """A task's tab in the viewer. Its class takes no arguments, and may have a ``style``, which is CSS."""

    title: str

    def fill(self, page: Page) -> Sequence[LandscapeButton]:
        """Make Gradio's components inside of the open tab; return buttons for the tab of energy landscapes."""
        ...


class Opened(ABC):
    """A trained model of a task, opened from the package, a saved folder or a finished run."""

    name: str
    model: SPEN | None
    """None for a method without an energy."""

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        """The task's metrics on a split of ``data``, its own if not given."""
        raise ValueError(f"{self.name} cannot be scored by a command")

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        """Predict for files; yield the paths that were written. Without ``out`` predictions go to stdout."""
        raise ValueError(f"{self.name} predicts from Python alone; its task reads no files")

    def exportable(self) -> Exportable:
        """The model and its example inputs, for ``spen export``."""
        raise ValueError(f"{self.name} cannot be exported")

    def batch(self, size: int | None = None, **options: Any) -> Any:
        """Inputs of the model, for ``spen bench``."""
        raise ValueError(f"{self.name} has no descent to differentiate")


class Task(ABC):
    """A kind of problem. ``name`` is that of its models' config.json, of its runs and of ``spen train NAME/recipe``."""

    name: str
    unit: str = "published"
    """The unit of ``Listed.published``, a heading of ``spen list``."""
    table: str | None = None
    """The name of the task's table for ``spen reproduce``."""
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
        """The data set of a recipe if --data is not given."""
        return next(iter(self.datasets))

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:  # noqa: B027
        """Raise ValueError for mistakes that can be found without importing torch."""

    @abstractmethod
    def train(self, order: TrainOrder) -> Trained | None:
        """Train into the run folder ``order.out``; None if time ran out."""

    def can_open(self, folder: Path) -> bool:
        """Whether ``open`` takes the folder of a run: it has weights."""
        return (folder / "model.safetensors").is_file()

    @abstractmethod
    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        """The model of a folder."""

    @abstractmethod
    def rebuild(self, **settings: Any) -> SPEN:
        """The model with fresh weights, from the settings that its config.json holds."""

    def fresh(self, recipe: str) -> Opened:
        """A recipe's model with fresh weights, for ``spen bench``."""
        raise ValueError(f"{recipe} is a recipe of {self.name}, which builds no model without its data")

    def reproduce(self, order: ReproduceOrder) -> Reproduced:
        """Train and score every row of the task's table."""
        raise ValueError(f"{self.name} has no table to reproduce")
