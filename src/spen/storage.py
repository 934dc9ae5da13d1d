"""Atomic writes, and tensors in safetensors files: nothing that is read here can run code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_storable", "load_weights", "noted", "replacing", "save_weights", "write_json", "write_whole"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces ``path`` if the block raises no error. Of several processes the last wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"part-{os.getpid()}-{path.name}")  # same suffix: some libraries choose the format by it
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write a JSON file atomically."""
    write_whole(path, json.dumps(value, indent=indent) + "\n")


def noted(path: Path, asked: Any) -> tuple[Any, Any]:
    """(the settings stored in a JSON file, ``asked`` as JSON stores it). A missing file is written first."""
    now = json.loads(json.dumps(asked))
    if not path.exists():
        write_json(path, now)
    return json.loads(path.read_text(encoding="utf-8")), now


def save_weights(weights: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A state dict as a plain safetensors file; the old file stays until the new one is whole.

    A weight with two names is written under both.
    """
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors lets nobody else read its files
        save_file(_apart(weights), temporary, metadata=metadata)
        temporary.chmod(mode)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())


def check_storable(weights: Mapping[str, Any]) -> None:
    """Raise if a state dict holds what a safetensors file cannot."""
    import torch

    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{name} of the state dict is a {type(value).__name__}, and weights are stored as tensors alone: keep "
                "it in a buffer instead of get_extra_state"
            )
        if value.dtype in (torch.complex128, torch.complex32):
            raise ValueError(f"{name} is of type {value.dtype}, which safetensors cannot store: keep its view_as_real")


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of what shares memory, which safetensors refuses to write."""
    apart: dict[str, Tensor] = {}
    places: set[int] = set()
    check_storable(weights)
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
