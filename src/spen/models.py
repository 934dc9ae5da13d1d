"""Trained models: shipped with the package, saved by ``save_pretrained``, or the result of a finished run.

Each is a folder with ``config.json`` (the task and its settings) and weights. ``open_model`` opens any of them:

    model = spen.models.open_model("dp-3")
    list(model.predict([Path("noisy.png")], Path("clean.png")))  # the files that were written

Importing this module does not import torch, so that a wrong name is reported at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spen.pretrained import CONFIG, WEIGHTS, read_config
from spen.storage import load_weights

if TYPE_CHECKING:
    from torch import Tensor

    from spen.tasks.task import Opened

__all__ = ["SavedModel", "find_model", "open_model", "shipped"]

RUN = "run.json"


@dataclass(frozen=True)
class SavedModel:
    """A folder with a model, before it is built from ``settings``; ``name`` is the argument of ``find_model``."""

    name: str
    folder: Path
    task: str
    settings: dict[str, Any] = field(repr=False)
    about: str = ""

    def weights(self) -> dict[str, Tensor]:
        """The tensors, on the CPU."""
        if not (self.folder / WEIGHTS).is_file():
            raise ValueError(f"{self.name} has no trained weights yet: train it to the end, or resume it")
        return load_weights(self.folder / WEIGHTS)

    @cached_property
    def run(self) -> dict[str, Any]:
        """The contents of run.json; empty if the folder is not that of a run."""
        path = self.folder / RUN
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def shipped() -> dict[str, str]:
    """The models shipped with the package: name and description."""
    return {name: read_config(folder).get("about", "") for name, folder in _shipped().items()}


def find_model(name: Path | str) -> SavedModel:
    """The folder behind a name: a model of the package, or the path of a run or of a saved model."""
    name = str(name)
    folder = Path(name)
    if not folder.is_dir():
        if name not in _shipped():
            known = ", ".join(_shipped())
            hint = "`spen list` says what each is for"
            raise ValueError(f"{name!r} is neither a run folder nor a model of the package ({known}); {hint}")
        folder = _shipped()[name]
    if not (folder / CONFIG).is_file():
        missing = "it has neither run.json nor config.json"
        if (folder / RUN).is_file():
            missing = "its model was not built by a task of spen, or by an older version"
        raise ValueError(f"{folder} holds no model that can be opened: {missing}")
    config = read_config(folder)
    task = config.get("builder")
    if task is None:
        raise ValueError(
            f"{folder / CONFIG} names no task: give --build module:function, your function that builds the model, or "
            "in Python SPEN.from_pretrained(…, build=…)"
        )
    return SavedModel(name, folder, str(task), config["settings"], str(config.get("about", "")))


def open_model(name: Path | str, device: str = "cpu") -> Opened:
    """A trained model, ready to predict: ``name`` is one of ``shipped()`` or a folder, ``device`` where it runs."""
    from spen import tasks

    saved = find_model(name)
    return tasks.find(saved.task).open(saved, device)


def _shipped() -> dict[str, Path]:
    root = Path(str(resources.files("spen") / "weights"))
    return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / CONFIG).is_file()}
