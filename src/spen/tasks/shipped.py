"""The models that come with the package. Imports nothing heavy: a wrong name is answered at once."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any


def shipped() -> list[str]:
    """Their names."""
    folder = resources.files("spen") / "weights"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def about(name: str) -> dict[str, Any]:
    """What stands beside the weights of a shipped model: `task`, `data`, `recipe`, and the command that trained it."""
    path = resources.files("spen") / "weights" / f"{name}.json"
    return {"task": "denoising", **json.loads(path.read_text(encoding="utf-8"))}


def check_model(name: str) -> None:
    """A model is a run folder or a shipped name; anything else is a mistake."""
    if not Path(name).is_dir() and name not in shipped():
        raise ValueError(f"{name!r} is neither a run folder nor a model of the package ({', '.join(shipped())})")
