"""A model of your own code on the command line: a run folder that ``fit`` wrote, and the function that builds it.

Files hold arrays: ``.npy`` (one, x), ``.npz`` or ``.safetensors``. The array ``y`` is the target. One other array is
the input x of the model; several are a dict of tensors.
"""

from __future__ import annotations

import pkgutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from spen.export import BATCH, Exportable
from spen.export.predictor import named_inputs
from spen.model import SPEN
from spen.pretrained import load_pretrained
from spen.storage import load_weights, replacing, save_weights
from spen.tasks.simple import answer_files
from spen.tasks.task import Opened, Progress, Scores
from spen.tensors import select, tensors_of, tree_map
from spen.training.sources import metric_of

FORMATS = (".npy", ".npz", ".safetensors")


class OwnModel(Opened):
    """``build``, as "module:function", returns the model with fresh weights; ``data`` is a file of example inputs."""

    model: SPEN

    def __init__(self, folder: Path | str, build: str, device: str = "cpu", data: str = "") -> None:
        if not Path(folder).is_dir():
            raise ValueError(f"{folder} is not a folder; --build opens the run folder of a model of your own")
        function = import_function(build)

        def checked(**settings: Any) -> SPEN:
            model = function(**settings)
            if not isinstance(model, SPEN):
                raise ValueError(f"{build} returned {type(model).__name__}; it must return a spen.SPEN")
            return model

        self.name, self.device, self.data = str(folder), device, data
        self.model = load_pretrained(folder, checked).to(device)

    def read(self, path: Path | str) -> tuple[Any, Tensor | None]:
        """(x, y) of a file, with floating-point arrays in the dtype of the weights; y is None without targets."""
        arrays = _load(Path(path))
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        arrays = {name: a.to(dtype) if a.is_floating_point() else a for name, a in arrays.items()}
        rows = {name: len(a) if a.dim() else None for name, a in arrays.items()}
        if len(set(rows.values())) > 1 or None in rows.values():
            raise ValueError(f"the arrays of {path} need one row per example, and as many each, not {rows}")
        y = arrays.pop("y", None)
        if not arrays:
            raise ValueError(f"{path} has no inputs: give it an array x, one row per example")
        return (next(iter(arrays.values())) if len(arrays) == 1 else arrays), y

    def answer(self, x: Any) -> Tensor:
        """y_T of every example, a batch at a time."""
        rows = torch.arange(len(tensors_of(x)[0])).split(32)
        with torch.no_grad():
            batches = (tree_map(lambda t: t.to(self.device), select(x, part)) for part in rows)
            return torch.cat([self.model(batch).output.cpu() for batch in batches])

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        todo = answer_files(inputs, out)
        for _, target in todo:
            if target.suffix not in FORMATS:
                raise ValueError(f"{target} should end in {' or '.join(FORMATS)}")
        for path, target in todo if progress is None else progress(todo, len(todo), "files"):
            y = self.answer(self.read(path)[0])
            with replacing(target) as temporary:
                if target.suffix == ".safetensors":
                    save_weights({"y": y}, temporary)
                elif target.suffix == ".npz":
                    np.savez(temporary, y=y.numpy())
                else:
                    np.save(temporary, y.numpy())
            yield target

    def evaluate(
        self, split: str, data: str = "", *, progress: Progress | None = None, metric: str = "", **options: Any
    ) -> Scores:
        if not metric or not data:
            raise ValueError("a model of your own needs --metric module:function and --data FILE with arrays x and y")
        function = import_function(metric)
        x, y = self.read(data)
        if y is None:
            raise ValueError(f"{data} has no array y, the targets that {metric} compares with")
        # Only `fit` needs to know whether higher is better.
        score = metric_of(function() if isinstance(function, type) else function)
        score.update(self.answer(x), y)
        name, value = metric.partition(":")[2], float(score.compute())
        lines = (f"{self.name} on {len(y)} examples of {data}", f"  {name} {value:.4f}")
        return Scores({"data": data, "examples": len(y), name: value}, lines)

    def exportable(self) -> Exportable:
        shapes = dict.fromkeys(named_inputs(self.batch()), (BATCH,)) if self.data else {}  # a folder needs no example
        return Exportable(self.model, lambda seed: self.batch((2, 3, 1)[seed % 3]), shapes)

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if not self.data:
            raise ValueError("this needs examples of the input: give --data FILE with an array x of three rows or more")
        return tree_map(lambda t: t[: size or 32], self.read(self.data)[0])


def import_function(place: str) -> Callable[..., Any]:
    """The function of "module:function"; the module is an installed one or a file of the working directory."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = pkgutil.resolve_name(place)
        if not callable(found):
            raise ValueError(f"it is a {type(found).__name__}")
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{place!r} is no module:function, installed or in the working directory: {error}") from error
    return cast("Callable[..., Any]", found)


def _load(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_weights(path)
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {"x": found} if isinstance(found, np.ndarray) else dict(found)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no array file ({', '.join(FORMATS)}) that can be read: {error}") from None
