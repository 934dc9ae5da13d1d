"""Weights and training state in safetensors: tensors as tensors, the rest as JSON in the header. Never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spen.storage import load_weights, replacing, save_weights

__all__ = ["SafeCheckpointIO", "load_tree", "load_weights", "save_tree", "save_weights"]


def save_tree(tree: Any, path: Path) -> None:
    """Write nested dicts, lists, numbers, strings and tensors; the old file stays until the new one is whole."""
    tensors: dict[str, Tensor] = {}
    skeleton = _skeleton(tree, tensors, "")
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"tree": json.dumps(skeleton)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())


def load_tree(path: Path) -> Any:
    """What ``save_tree`` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "tree" not in metadata:
                raise ValueError(f"{path} is not a checkpoint of spen: it has no tree in its header")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from None
    return _fleshed(json.loads(metadata["tree"]), tensors)


class SafeCheckpointIO(CheckpointIO):
    """Lightning's checkpoints through ``save_tree``."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save_tree(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return load_tree(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _skeleton(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        key = where or "value"
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"~": "tensor", "key": key}
    if isinstance(value, Mapping):
        items = [[_key(k), _skeleton(v, tensors, f"{where}/{k}")] for k, v in value.items()]
        return {"~": "dict", "items": items}
    if isinstance(value, list | tuple):
        parts = [_skeleton(v, tensors, f"{where}/{i}") for i, v in enumerate(value)]
        return {"~": "tuple" if isinstance(value, tuple) else "list", "items": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device | Path):
        return str(value)
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {where or 'its root'})")


def _key(key: Any) -> Any:
    if not isinstance(key, str | int):
        raise TypeError(f"a checkpoint's dict keys are strings or integers, not {type(key).__name__}")
    return key


def _fleshed(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    kind = skeleton["~"]
    if kind == "tensor":
        return tensors[skeleton["key"]]
    if kind == "dict":
        return {k: _fleshed(v, tensors) for k, v in skeleton["items"]}
    parts = [_fleshed(v, tensors) for v in skeleton["items"]]
    return tuple(parts) if kind == "tuple" else parts
