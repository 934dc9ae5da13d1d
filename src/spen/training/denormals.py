"""Denormal numbers: below 1e-38 a product takes a CPU many times as long, and is as good as zero."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Within it, a result that would be denormal is zero, in this thread and in those that torch computes with.

    The second derivative of a softplus is exp(−τ|x|) where it is flat; times a small cotangent it is denormal, so a
    training step that was fast at the start slows down as units learn to be silent. What was set before is set again.
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
        return  # a processor that does not offer it
    # Threads inherit it when they start, and those of OpenMP may be there: it lets them go, and starts others later.
    with suppress(AttributeError, OSError, TypeError):  # another kind of threads, or a system without such a look-up
        ctypes.CDLL(None).omp_pause_resource_all(1)
