"""Run a function while the tensors of a module are replaced by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class _Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor], function: Callable[[], Any]) -> Any:
    """function(), with ``tensors`` in the place of the parameters and buffers they are named after."""
    return functional_call(_Holder(module), {f"module.{n}": t for n, t in tensors.items()}, (function,))
