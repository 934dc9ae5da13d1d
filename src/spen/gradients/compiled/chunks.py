"""A batch that goes through a program in chunks of one size, one after another: a fraction of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chunks:
    """Rows 0 … ``batch`` in as few chunks as ``most`` rows each allow, all of ``size`` rows.

    Where they do not come out even, the last chunk begins with rows of the one before: these count once.
    """

    batch: int
    most: int | None = None

    @property
    def number(self) -> int:
        return 1 if self.most is None else max(1, -(-self.batch // self.most))

    @property
    def size(self) -> int:
        return -(-self.batch // self.number)

    def __iter__(self) -> Iterator[tuple[slice, int]]:
        """(the rows of a chunk, how many of its first rows have been in the chunk before)."""
        begin = 0
        while begin < self.batch:
            first = min(begin, self.batch - self.size)
            yield slice(first, first + self.size), begin - first
            begin += self.size

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """One tensor of all rows from the results of the chunks."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part[again:] for part, (_, again) in zip(parts, self, strict=True)])


def silenced(direction: Tensor, again: int) -> Tensor:
    """A direction that is zero in rows that have been counted."""
    if not again:
        return direction
    return torch.cat([torch.zeros_like(direction[:again]), direction[again:]])
