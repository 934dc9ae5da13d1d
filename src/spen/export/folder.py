"""A model as a folder that every command opens: config.json and model.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spen.export.exportable import Exportable, Written
from spen.pretrained import CONFIG, WEIGHTS, write_config
from spen.storage import save_weights

if TYPE_CHECKING:
    from spen.models import SavedModel

__all__ = ["save_folder"]

_TOLD = ("seed", "hardware", "versions", "commit")  # what run.json says of how the model was trained


def save_folder(thing: Exportable, folder: Path, half: bool, about: str, saved: SavedModel) -> Written:
    """Write both files; a folder with other files is left alone. ``half`` stores matrices in half precision."""
    others = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    if set(others) - {CONFIG, WEIGHTS}:
        raise ValueError(f"{folder} holds other files ({sorted(others)[0]}); give a folder that is empty or new")
    more = {key: saved.run[key] for key in _TOLD if key in saved.run}
    about = about or saved.about
    write_config(folder, thing.model.origin, **({"about": about} if about else {}), **more)
    weights = thing.model.state_dict()
    if half:
        weights = {
            name: value.to(torch.float16) if value.is_floating_point() and value.dim() > 1 else value
            for name, value in weights.items()
        }
    save_weights(weights, folder / WEIGHTS, {"format": "pt"})
    return Written(folder, "pretrained", {}, None)
