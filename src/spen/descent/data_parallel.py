"""Copies of a module that ``nn.DataParallel`` hands out: they have no parameters of their own."""

from __future__ import annotations

from torch import nn


def is_replica(module: nn.Module) -> bool:
    """Whether ``nn.DataParallel`` has made the module, or a part of it: it has no parameters of its own then."""
    return any(part.__dict__.get("_is_replica", False) for part in module.modules())
