"""A model in a folder, in the layout of the Hugging Face hub: config.json and model.safetensors, and no pickle.

``config.json`` holds the name of a builder and its settings (``spen.builders``); the weights are tensors alone.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spen import __version__
from spen.builders import Builder, Origin, find_builder
from spen.storage import load_weights, save_weights, write_whole

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["complete", "fitting", "load_pretrained", "read_config", "save_pretrained", "write_config"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
KIND = "spen"


def save_pretrained(model: SPEN, folder: Path | str) -> Path:
    """Write the two files; the builder and its settings are the model's ``origin``."""
    folder = Path(folder)
    write_config(folder, model.origin)
    save_weights(model.state_dict(), folder / WEIGHTS, {"format": "pt"})
    return folder


def write_config(folder: Path, origin: Origin | None, **more: Any) -> None:
    """Write config.json, which says how the model of a folder is built; ``more`` adds entries for readers."""
    config = {
        "model_type": KIND,
        "architectures": ["SPEN"],
        "spen_version": __version__,
        "builder": None if origin is None else origin.builder,
        **more,
        "settings": {} if origin is None else origin.plain(),
    }
    try:
        text = json.dumps(config, indent=1, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"the settings of builder {config['builder']!r} cannot be written as JSON: {error}") from None
    write_whole(folder / CONFIG, text + "\n")


def load_pretrained(folder: Path | str, build: Builder | None = None) -> SPEN:
    """The model of a folder, for prediction (``eval``); ``build(**settings)`` replaces the registered builder."""
    if not Path(folder).is_dir() and (Path(__file__).with_name("weights") / folder).is_dir():
        raise ValueError(
            f"{str(folder)!r} is no folder but a model of the package: open it with "
            f'spen.models.open_model("{folder}").model'
        )
    config = read_config(folder)
    name, settings = config["builder"], config["settings"]
    if build is None and name is None:
        raise ValueError(f"{Path(folder) / CONFIG} does not say how to build the model; give build=")
    if not (Path(folder) / WEIGHTS).is_file():
        raise ValueError(f"{folder} has no trained weights yet: train it to the end, or resume it")
    try:
        model = (find_builder(name) if build is None else build)(**settings)
    except TypeError as error:
        raise ValueError(f"the settings in {Path(folder) / CONFIG} do not fit the builder: {error}") from None
    with fitting(folder):
        model.load_state_dict(load_weights(Path(folder) / WEIGHTS))
    if name is not None:
        model.origin = Origin(name, settings)
    return model.eval()


@contextmanager
def fitting(folder: Path | str) -> Iterator[None]:
    """Turn the RuntimeError of weights that do not fit into a one-sentence ValueError."""
    try:
        yield
    except RuntimeError as error:
        first = textwrap.shorten(str(error), 200, placeholder=" …")
        raise ValueError(f"the weights in {folder} do not fit the model that was built: {first}") from None


@contextmanager
def complete(folder: Path | str) -> Iterator[None]:
    """Turn the error of a missing or malformed entry of config.json into a one-sentence ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} does not say all of what its model is: {error} is missing or unreadable") from None


def read_config(folder: Path | str) -> dict[str, Any]:
    """The contents of config.json, validated."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} is not a saved model: it has no {CONFIG}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("model_type") != KIND:
        raise ValueError(f"{path} is of another library: its model_type is not {KIND!r}")
    if not isinstance(config.get("builder"), str | None) or not isinstance(config.get("settings"), dict):
        raise ValueError(f"{path} needs a builder (a name or null) and its settings (an object)")
    return config
