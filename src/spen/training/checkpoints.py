"""The state of training in safetensors: tensors as tensors, everything else as JSON in the header. Never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import CheckpointIO
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spen.storage import save_weights


class SafeCheckpointIO(CheckpointIO):
    """Lightning's checkpoints in safetensors files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save_tree(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return load_tree(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def save_tree(tree: Any, path: Path) -> None:
    """Write nested dicts, lists, numbers, strings and tensors; the old file stays until the new one is complete."""
    tensors: dict[str, Tensor] = {}
    structure = _to_json(tree, tensors, "")
    save_weights(tensors, path, metadata={"tree": json.dumps(structure)})


def load_tree(path: Path) -> Any:
    """The tree that ``save_tree`` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from None
    if "tree" not in metadata:
        raise ValueError(f"{path} is not a checkpoint of spen: it has no tree in its header")
    return json.loads(metadata["tree"], object_hook=lambda node: _from_json(node, tensors))


def _to_json(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        key = where or "value"
        tensors[key] = value
        return {"~": "tensor", "key": key}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"a checkpoint's dict keys are strings or integers, not {type(key).__name__}")
        return {"~": "dict", "items": [[k, _to_json(v, tensors, f"{where}/{k}")] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"~": kind, "items": [_to_json(v, tensors, f"{where}/{i}") for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device | Path):
        return str(value)
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {where or 'its root'})")


def _from_json(node: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    if node["~"] == "tensor":
        return tensors[node["key"]]
    return {"dict": dict, "list": list, "tuple": tuple}[node["~"]](node["items"])
