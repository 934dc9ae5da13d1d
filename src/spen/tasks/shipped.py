"""The models that come with the package. Imports nothing heavy: a wrong name is answered at once."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped() -> list[str]:
    """Their names."""
    folder = resources.files("spen") / "weights"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def check_model(name: str) -> None:
    """A model is a run folder or a shipped name; anything else is a mistake."""
    if not Path(name).is_dir() and name not in shipped():
        raise ValueError(f"{name!r} is neither a run folder nor a model of the package ({', '.join(shipped())})")
