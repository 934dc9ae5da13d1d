"""What tells the shapes of a batch apart: programs are made for one of them each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spen.tensors import flatten

Key = tuple[Any, ...]


def signature(tensor: Tensor) -> Key:
    """Shape, type, place, and whether a gradient is wanted."""
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad


def structure(features: Any) -> Key:
    """The tree, the signatures and strides of its tensors, and its constants."""
    leaves, spec = flatten(features)
    return spec, tuple((signature(leaf), leaf.stride()) if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def modes() -> Key:
    """Switches that change the kernels of torch and no operation."""
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
    )
