"""y* as a point of the domain, in the type the model computes in: labels may come as integers, data in double."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from spen.arguments import require_function
from spen.model import SPEN
from spen.protocols import Features
from spen.tensors import tensors_of


def require_truth(truth: Any) -> None:
    """``truth`` must be None or a function of the target."""
    if truth is not None:
        require_function(truth, "truth", "truth(target)")


def point_of(target: Any, truth: Callable[[Any], Tensor] | None, dtype: torch.dtype) -> Tensor:
    """``truth`` turns the target into a point; without it the target is one."""
    point: Tensor = target if truth is None else truth(target)
    return point.to(dtype)


def type_of(model: SPEN, features: Features) -> torch.dtype:
    """The type of the model's parameters, or else of its features."""
    tensors = chain(model.parameters(), tensors_of(features))
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
