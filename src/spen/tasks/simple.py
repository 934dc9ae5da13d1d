"""A task from a few functions: a model, its training, its data and its metric; optionally files and a viewer tab.

``SimpleTask`` adds run folders, models that every command opens, scores and export.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spen.tasks.options import changed
from spen.tasks.task import Listed, Opened, Option, Progress, Scores, Task, Trained, TrainOrder

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from spen.export import Exportable
    from spen.model import SPEN
    from spen.models import SavedModel
    from spen.protocols import Objective
    from spen.search import Found
    from spen.training import Stage

__all__ = ["SimpleOpened", "SimpleTask", "answer_files", "check_targets"]

_SEARCH = (
    Option(
        "steps",
        int,
        "Steps of each descent; beyond the trained number the last one is repeated. Default: that of the task.",
        least=1,
    ),
    Option(
        "restarts",
        int,
        "Descents of each example, from perturbed starts after the first; the lowest energy is kept. "
        "Default: that of the task.",
        least=1,
    ),
    Option(
        "start_noise",
        float,
        "Standard deviation of the noise on the start of restarts. Default: that of the task, or 1.",
    ),
)
"""The options of ``spen.search`` that commands take."""

_EVERY = Option("every", int, "Score every n-th example only.", least=1)

_DETAILS = ("name", "about", "published")  # of a recipe: not options


class SimpleTask(Task):
    """Subclasses define ``name``, ``datasets``, ``systems`` and the methods below; x and y are batch-first tensors.

    ``systems`` holds a frozen dataclass for each recipe, with ``about`` and optionally ``published``; ``--set`` changes
    its other fields. Import torch inside of the methods, so that ``spen --help`` stays fast.
    """

    systems: Mapping[str, Any]
    measure: str = "score"
    """The name of the metric in the output."""
    batch_size: int = 32
    """For scores, and for training unless the recipe has a ``batch_size`` of its own."""
    options: Mapping[str, tuple[Option, ...]] = {"evaluate": (*_SEARCH, _EVERY), "predict": _SEARCH}

    @property
    def opened(self) -> type[SimpleOpened]:
        """The class of opened models."""
        return SimpleOpened

    @abstractmethod
    def model(self, system: Any) -> SPEN:
        """A model with fresh weights."""

    @abstractmethod
    def stages(self, system: Any) -> Sequence[Stage]:
        """How it is trained."""

    @abstractmethod
    def examples_of(self, data: str, split: str) -> tuple[Tensor, Tensor]:
        """(x, y) of a split (train, dev or test) of a data set."""

    @abstractmethod
    def metric(self, system: Any) -> Metric:
        """Compares predictions with y; has ``higher_is_better``."""

    def read(self, path: Path, **options: Any) -> Tensor:
        """x of one file, without the batch dimension."""
        raise ValueError(f"models of {self.name} predict from Python alone; the task reads no files")

    def write(self, answer: Tensor, path: Path, **options: Any) -> None:
        """Write the answer for one file."""
        raise ValueError(
            f"the task {self.name} reads files and writes none: give its class a method write(answer, path)"
        )

    def measure_of(self, system: Any) -> str:
        """The name of a recipe's metric in the output."""
        return self.measure

    def solved(self, system: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
        """A function (y, x) -> (B,) bool that checks answers without the target and ends a search early, or None."""
        return None

    def details(self, system: Any, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Further scores for ``spen evaluate``, from all predictions of a split."""
        return {}

    # ── implemented with the methods above ──

    @cached_property
    def recipes(self) -> Mapping[str, Listed]:  # type: ignore[override]
        return {n: Listed(n, s.about, getattr(s, "published", None)) for n, s in self.systems.items()}

    def system(self, name: str, settings: Mapping[str, str]) -> Any:
        """A recipe with the options of --set."""
        if name not in self.systems:
            raise ValueError(f"there is no recipe {name!r} of {self.name}; there are {', '.join(self.systems)}")
        return changed(self.systems[name], settings, name=name, fixed=_DETAILS)

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        self.system(recipe, settings)
        if data not in self.datasets:
            raise ValueError(f"there is no data set {data!r} of {self.name}; there are {', '.join(self.datasets)}")

    def rebuild(self, **settings: Any) -> SPEN:
        from spen.builders import Origin

        model = self.model(type(self.systems[settings["recipe"]])(**_tuples(settings["options"])))
        model.origin = Origin(self.name, settings)
        return model

    def train(self, order: TrainOrder) -> Trained | None:
        import torch

        from spen.training import TensorSource, fit

        system = self.system(order.recipe, order.settings)
        if not is_dataclass(system):
            raise TypeError(f"recipe {order.recipe} of {self.name} is no dataclass")
        torch.manual_seed(order.seed)
        options = asdict(system)  # type: ignore[arg-type]
        size = getattr(system, "batch_size", self.batch_size)
        run = fit(
            self.rebuild(recipe=order.recipe, data=order.data, options=options),
            self.stages(system),
            TensorSource(*self.examples_of(order.data, "train"), size),
            TensorSource(*self.examples_of(order.data, "dev"), self.batch_size, shuffle=False),
            self.metric(system),
            out=order.out,
            recipe={"task": self.name, "name": order.recipe, "data": order.data, **options},
            **order.fit_options,
        )
        if not run.complete:
            return None
        best = max if self.metric(system).higher_is_better else min
        return Trained(self.measure_of(system), best((e["dev"] for e in run.metrics() if "dev" in e), default=None))

    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        from spen.pretrained import complete, fitting

        with complete(saved.folder):
            model = self.rebuild(**saved.settings)
        with fitting(saved.folder):
            model.load_state_dict(saved.weights())
        return self.opened(self, saved.name, model, saved.settings, device)

    def fresh(self, recipe: str) -> Opened:
        options, data = asdict(self.system(recipe, {})), self.default_data(recipe)
        settings: dict[str, Any] = {"recipe": recipe, "data": data, "options": options}
        return self.opened(self, recipe, self.rebuild(**settings), settings, "cpu")


class SimpleOpened(Opened):
    """A trained model of a ``SimpleTask``."""

    model: SPEN

    def __init__(self, task: SimpleTask, name: str, model: SPEN, settings: Mapping[str, Any], device: str) -> None:
        self.task, self.name, self.settings, self.device = task, name, settings, device
        self.model = model.to(device).eval()

    def answer(self, x: Tensor, **options: Any) -> Tensor:
        """y for a batch, as the last stage's objective predicts it, or by ``spen.search`` with its options."""
        import torch

        if options:
            return self.search(x, **options).output.cpu()
        with torch.no_grad():
            return self._objective().predict(self.model, x.to(self.device)).cpu()

    def search(self, x: Tensor, *, start_noise: float | None = None, **options: Any) -> Found:
        """Longer descents and restarts, the same ones at every call."""
        import torch

        options.setdefault("generator", torch.Generator().manual_seed(0))
        options.setdefault("rows", max(len(x), 16))  # restarts of one example run at once: a third of the time
        if start_noise is not None:
            options["noise"] = start_noise
        if not self._descends():
            raise ValueError(f"{self.name} does not descend: it has no steps or restarts to choose")
        return self.model.search(x.to(self.device), solved=self.task.solved(self.system), **options)

    def _descends(self) -> bool:
        from spen.objectives import Feedforward, InferenceNetwork

        return not isinstance(self._objective(), Feedforward | InferenceNetwork)

    @property
    def system(self) -> Any:
        """The recipe that the model was trained with."""
        return type(self.task.systems[self.settings["recipe"]])(**_tuples(self.settings["options"]))

    def _objective(self) -> Objective:
        return self.task.stages(self.system)[-1].objective

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        data = data or self.settings["data"]
        import torch

        every = options.pop("every", 1)
        x, y = (part[::every] for part in self.task.examples_of(data, split))
        metric, size = self.task.metric(self.system), self.task.batch_size
        starts, answers = range(0, len(x), size), []
        for start in starts if progress is None else progress(starts, len(starts), "batches"):
            answers.append(self.answer(x[start : start + size], **options))
            metric.update(answers[-1], y[start : start + size])
        further = self.task.details(self.system, torch.cat(answers), x, y)
        values = {self.task.measure_of(self.system): float(metric.compute()), **further}
        lines = [f"{self.name} on {len(x)} {split} examples of {data}", *map(_line, values.items())]
        return Scores({"data": data, "examples": len(x), **options, **values}, tuple(lines))

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        search = {o.name: options.pop(o.name) for o in _SEARCH if o.name in options}
        todo = answer_files(inputs, out)
        for path, target in todo if progress is None else progress(todo, len(todo), "files"):
            answer = self.answer(self.task.read(path, **options)[None], **search)[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            self.task.write(answer, target, **options)
            yield target

    def exportable(self) -> Exportable:
        from spen.export import BATCH, Exportable

        x, _ = self.task.examples_of(self.settings["data"], "dev")
        return Exportable(
            model=self.model,
            example=lambda seed: x[: (2, 3, 1)[seed % 3]],
            shapes={"x": (BATCH,)},
            descend=self._descends(),
            metadata={"task": self.task.name, "recipe": str(self.settings["recipe"])},
        )

    def batch(self, size: int | None = None, **options: Any) -> Any:
        x, _ = self.task.examples_of(self.settings["data"], "train")
        return x[: size or self.task.batch_size]


def _line(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, dict):
        return "\n".join([f"  {name}", *(f"    {key:>4} {number:.4g}" for key, number in value.items())])
    return f"  {name} {value:.4g}"


def answer_files(inputs: Sequence[Path], out: Path | None, suffix: str = "") -> list[tuple[Path, Path]]:
    """(file, the file for its answer): ``out`` is a file for one input, a folder for several; no input is overwritten.

    In a folder an answer has the name of its input, with ``suffix`` if one is given.
    """
    files = [p for path in inputs for p in (sorted(path.iterdir()) if path.is_dir() else [path])]
    if out is None:
        raise ValueError("give --out, a file for one input or a folder for several, not stdout")
    single = len(files) == 1 and not inputs[0].is_dir() and bool(out.suffix)
    targets = [out if single else out / (path.stem + suffix if suffix else path.name) for path in files]
    check_targets(files, targets)
    return list(zip(files, targets, strict=True))


def check_targets(files: Sequence[Path], targets: Sequence[Path], others: Sequence[Path] = ()) -> None:
    """Refuse answers that would replace an input, one of ``others``, or each other."""
    given, first = {path.resolve() for path in (*files, *others)}, dict[Path, Path]()
    for path, target in zip(files, targets, strict=True):
        if target.resolve() in given:
            raise ValueError(f"{target} would be overwritten by the answer for {path}; give another -o")
        if (other := first.setdefault(target.resolve(), path)) != path:
            raise ValueError(f"{other} and {path} would both be written to {target}; rename one")


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
