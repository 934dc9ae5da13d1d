"""Denormal numbers: below 1e-38 an operation takes a CPU many times as long."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal results to zero within the block, in this thread and in torch's; then restore the setting.

    The second derivative of a softplus is exp(−τ|x|) where it is flat; times a small cotangent it is denormal, so
    training slows down as units saturate.
    """
    before = _is_flushing()
    _flush(True)
    try:
        yield
    finally:
        _flush(before)


def _is_flushing() -> bool:
    smallest = torch.full((1,), torch.finfo(torch.float32).tiny)
    return not bool(smallest * 0.5)


def _flush(on: bool) -> None:
    if not torch.set_flush_denormal(on):
        return  # not supported by the processor
    # Threads inherit the setting when they start. This ends the threads of OpenMP, which starts new ones when needed.
    with suppress(AttributeError, OSError, TypeError):  # torch was built without OpenMP, or it cannot be found
        ctypes.CDLL(None).omp_pause_resource_all(1)
