"""Where batches come from: a pure function of (seed, epoch), so that a resumed run sees what it would have seen."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from spen.tensors import select, tensors_of


class Source(Protocol):
    """Batches (x, target) of one epoch, for one of ``world`` processes. The same arguments give the same batches.

    Every process gets as many, so the last ones may repeat others. A source that has a method ``own(rank, world)``
    says how many do not: the rest are not scored. One that has a method ``fingerprint()``, or an attribute ``name``,
    says by what it returns which data it gives: a run folder is refused to other data.
    """

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Any, Any]]: ...

    def count(self, world: int) -> int:
        """How many batches each process gets in an epoch."""
        ...


def own_batches(source: Source, rank: int, world: int) -> int:
    """How many batches of a process, from its first on, are no repeats of others."""
    own = getattr(source, "own", None)
    return source.count(world) if own is None else own(rank, world)


class TensorSource:
    """Examples held in memory as trees of batch-first tensors.

    ``shuffle`` draws a new order each epoch, from ``seed`` or, if none is given, from that of the run. A last batch
    that cannot be shared equally is dropped only if ``drop_last``. With several processes each takes its share of every
    batch of ``batch_size · world`` examples.
    """

    def __init__(
        self,
        x: Any,
        target: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        self.x, self.target = x, target
        self.batch_size, self.shuffle, self.drop_last, self.seed = batch_size, shuffle, drop_last, seed
        sizes = {leaf.shape[0] for leaf in [*tensors_of(x), *tensors_of(target)]}
        if len(sizes) != 1:
            raise ValueError(f"inputs and targets must have the same number of examples, not {sorted(sizes)}")
        if batch_size < 1:
            raise ValueError(f"a batch has at least one example, not {batch_size}")
        (self.size,) = sizes

    def seeded(self, seed: int) -> TensorSource:
        """This source with the seed of a run, unless it was given one of its own."""
        if self.seed is not None:
            return self
        other = copy(self)
        other.seed = seed
        return other

    def fingerprint(self) -> dict[str, Any]:
        """A checksum of the examples, and how they are shared out."""
        own = {name: getattr(self, name) for name in ("batch_size", "shuffle", "drop_last", "seed")}
        return {"x": self.x, "target": self.target, **own}

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        order = self._order(epoch)
        stride = self.batch_size * world
        for k in range(self.count(world)):
            rows = order[k * stride + rank * self.batch_size : k * stride + (rank + 1) * self.batch_size]
            if k >= self.own(rank, world):  # too few to share: every process must still take part in the step
                rows = order[-self.batch_size :]
            yield select(self.x, rows), select(self.target, rows)

    def count(self, world: int = 1) -> int:
        stride = self.batch_size * world
        return self.size // stride if self.drop_last else -(-self.size // stride)

    def own(self, rank: int, world: int) -> int:
        """How many of its batches are no repeats."""
        return min(self.count(world), len(range(rank, -(-self.size // self.batch_size), world)))

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(stream(self.seed or 0, epoch)))


def stream(*numbers: int) -> int:
    """A seed for one of many independent random streams."""
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        value ^= number & 0xFFFFFFFFFFFFFFFF
        value = (value * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value & 0x7FFFFFFFFFFFFFFF
