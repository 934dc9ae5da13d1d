"""Files that are whole or not there, and tensors in safetensors files: nothing that is read here can run code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["load_weights", "noted", "save_weights", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """A text file; the old one stays until the new one is whole, and of several processes the last one wins."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def noted(path: Path, asked: Any) -> tuple[Any, Any]:
    """What a JSON file says was asked, and what is asked now, as JSON has it; the first time the file is told."""
    now = json.loads(json.dumps(asked))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(now, indent=1) + "\n")
    return json.loads(path.read_text(encoding="utf-8")), now


def save_weights(weights: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A state dict as a plain safetensors file; the old file stays until the new one is whole.

    A weight with two names is written under both.
    """
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    save_file(_apart(weights), temporary, metadata=metadata)
    os.replace(temporary, path)


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of what shares memory, which safetensors refuses to write."""
    apart: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, weight in weights.items():
        value = weight.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in places else value
        places.add(place)
    return apart


def load_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a plain safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as weights: {error}") from None
