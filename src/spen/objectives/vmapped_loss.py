"""The losses of several iterates by one call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spen.protocols import Loss

DEVICES = ("cuda",)  # where every operation costs a kernel launch
SMALL = 2**17  # numbers in an iterate; for larger ones the copy costs more than the launches


class VmappedLoss:
    """ℓ(y, y*) of several y at once, through vmap: as many operations as one of them takes.

    For small iterates on a GPU, where kernel launches take most of the time. In all other cases the loss is called for
    one iterate after the other, also if vmap refuses it (it depends on tensor values, draws random numbers or writes
    in place) or if its values with and without vmap differ on the first batch.
    """

    def __init__(self) -> None:
        self.tested: Loss | None = None
        self.agrees = False  # whether the tested loss has the same values with and without vmap

    def __call__(self, loss: Loss, iterates: Sequence[Tensor], target: Any) -> Tensor:  # n × (B, …) -> (n, B) or (n,)
        if not _worthwhile(iterates):
            return _one_by_one(loss, iterates, target)
        if self.tested is not loss:
            self.tested, self.agrees = loss, _agrees(loss, iterates, target)
        return (_at_once if self.agrees else _one_by_one)(loss, iterates, target)


def _worthwhile(iterates: Sequence[Tensor]) -> bool:
    first = iterates[0]
    plain = all(type(y) is Tensor for y in iterates) and not torch.compiler.is_compiling()  # not while it is traced
    return plain and len(iterates) > 1 and first.device.type in DEVICES and first.numel() <= SMALL


def _one_by_one(loss: Loss, iterates: Sequence[Tensor], target: Any) -> Tensor:
    return torch.stack([loss(y, target) for y in iterates])


def _at_once(loss: Loss, iterates: Sequence[Tensor], target: Any) -> Tensor:
    return torch.vmap(lambda y: loss(y, target))(torch.stack(list(iterates)))


@torch.no_grad()
def _agrees(loss: Loss, iterates: Sequence[Tensor], target: Any) -> bool:
    if isinstance(loss, nn.Module) and next(loss.buffers(), None) is not None:
        return False  # the test itself may write into them
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            at_once = _at_once(loss, iterates, target)
        except Exception:  # an error of the loss itself is raised when it is called for one iterate
            return False
    if any("performance drop" in str(warning.message) for warning in caught):
        return False  # vmap falls back to a loop for some operation
    single = _one_by_one(loss, iterates, target)
    return at_once.shape == single.shape and torch.allclose(at_once, single, 1e-4, 1e-6, equal_nan=True)
