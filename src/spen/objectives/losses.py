"""Differentiable losses ℓ(y, y*) per example: (B, …), (B, …) -> (B,)."""

from __future__ import annotations

import torch
from torch import Tensor

from spen.tensors import flat


def squared_error(y: Tensor, target: Tensor) -> Tensor:
    """Mean over coordinates of (y − y*)²."""
    check_shapes(y, target)
    return flat((y - target).square()).mean(1)


def log_loss(y: Tensor, target: Tensor) -> Tensor:
    """−Σ y* log y over simplices, along any dimension. Over a box use ``binary_log_loss``."""
    check_shapes(y, target)
    return -(target * _log(y)).flatten(1).sum(1)


def binary_log_loss(y: Tensor, target: Tensor) -> Tensor:
    """−Σ y* log y + (1 − y*) log(1 − y) over the coordinates of a box: labels that are wrongly on cost, too."""
    check_shapes(y, target)
    return -flat(target * _log(y) + (1 - target) * _log(1 - y)).sum(1)


def check_shapes(y: Tensor, target: Tensor) -> None:
    """(B, 1) and (B,) would broadcast to every pair of examples."""
    if y.shape != target.shape:
        raise ValueError(f"y has shape {tuple(y.shape)} and the target {tuple(target.shape)}: a loss needs them alike")


def _log(y: Tensor) -> Tensor:
    # The floor keeps 1/y finite; a probability below it has underflowed and gets no gradient.
    return y.clamp_min(torch.finfo(y.dtype).tiny ** 0.5).log()
