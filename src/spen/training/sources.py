"""Batches as a function of (seed, epoch) alone, so that a resumed run sees the same ones; and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import Metric

from spen.tensors import flatten, select, tensors_of


class Source(Protocol):
    """Batches (x, target) of one epoch, for one of ``world`` processes. The same arguments give the same batches.

    Every process gets the same number, so the last ones may repeat others. If a source has a method
    ``own(rank, world)``, it returns how many batches are not repeats, and only these are scored. A method
    ``fingerprint()`` or an attribute ``name`` identifies the data: ``fit`` refuses a run folder of other data.
    """

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Any, Any]]: ...

    def count(self, world: int) -> int:
        """The number of batches that each process gets in an epoch."""
        ...


def own_batches(source: Source, rank: int, world: int) -> int:
    """The number of batches of a process, from the first on, that are not repeats of others."""
    own = getattr(source, "own", None)
    return source.count(world) if own is None else own(rank, world)


class TensorSource:
    """Examples held in memory as trees of batch-first tensors.

    ``shuffle`` draws a new order each epoch, from ``seed`` or, if none is given, from that of the run. A last batch
    that cannot be divided equally is dropped only if ``drop_last``. With several processes each takes its share of
    every batch of ``batch_size · world`` examples.
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
        for name, tree in (("x", x), ("target", target)):
            _check_tree(name, tree)
        sizes = {leaf.shape[0] for leaf in [*tensors_of(x), *tensors_of(target)]}
        if len(sizes) != 1:
            raise ValueError(f"inputs and targets must have the same number of examples, not {sorted(sizes)}")
        if batch_size < 1:
            raise ValueError(f"a batch has at least one example, not {batch_size}")
        (self.size,) = sizes
        if drop_last and self.size < batch_size:
            raise ValueError(f"{self.size} examples make no batch of {batch_size}: leave drop_last out")
        if not self.size:
            raise ValueError("the data hold no example")

    def seeded(self, seed: int) -> TensorSource:
        """This source with the seed of a run, unless it has its own."""
        other = copy(self)
        other.seed = seed if self.seed is None else self.seed
        return other

    def fingerprint(self) -> dict[str, Any]:
        """The examples and how they are batched."""
        return {name: getattr(self, name) for name in ("x", "target", "batch_size", "shuffle", "drop_last", "seed")}

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(stream(self.seed or 0, epoch))
        order = torch.randperm(self.size, generator=generator) if self.shuffle else torch.arange(self.size)
        own = self.own(rank, world)
        for k in range(self.count(world)):
            first = (k * world + rank) * self.batch_size
            rows = order[first : first + self.batch_size]
            if k >= own:  # every process must take part in the step: repeat the last examples
                rows = order[-self.batch_size :]
            yield select(self.x, rows), select(self.target, rows)

    def count(self, world: int = 1) -> int:
        stride = self.batch_size * world
        return self.size // stride if self.drop_last else -(-self.size // stride)

    def own(self, rank: int, world: int) -> int:
        """The number of batches that are not repeats."""
        return min(self.count(world), len(range(rank, -(-self.size // self.batch_size), world)))


def _check_tree(name: str, tree: Any) -> None:
    """Refuse arrays and lists of numbers: rows are drawn from tensors alone, so these would not be shuffled along."""
    leaves = flatten(tree)[0]
    if tree is not None and not any(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        kind = type(tree).__name__
        raise TypeError(f"{name} must hold a tensor with one row per example, and is of type {kind}: {_AS_TENSOR}")
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) or (isinstance(leaf, Tensor) and not leaf.dim()):
            kind = "an array" if isinstance(leaf, np.ndarray) else "a tensor without rows"
            raise TypeError(f"{name} holds {kind} beside its tensors: {_AS_TENSOR}")


_AS_TENSOR = "give torch.as_tensor(values), whose first dimension counts the examples"


class LoaderSource:
    """The batches (x, target) of a ``DataLoader``, with its workers, sampler and augmentation.

    The generators of the loader and of its sampler are seeded for each epoch, so a resumed run sees the same batches.
    With several processes each takes every n-th batch, and the last may repeat; a loader with a ``DistributedSampler``
    divides them itself. ``persistent_workers`` keep their random numbers from epoch to epoch, so with them a resumed
    run draws another augmentation.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        try:
            self.size = len(loader)
        except TypeError:
            raise TypeError("a DataLoader of an IterableDataset has no length: give a source of your own") from None
        if not self.size:
            raise ValueError(
                f"the DataLoader gives no batch: it has {len(loader.dataset)} examples, "  # type: ignore[arg-type]
                f"batch_size={loader.batch_size} and drop_last={loader.drop_last}"
            )
        self.loader, self.seed = loader, seed
        self.divides = isinstance(loader.sampler, DistributedSampler)

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(stream(self.seed, epoch))
        parts: tuple[Any, ...] = (self.loader, self.loader.sampler, self.loader.batch_sampler)
        for part in parts:
            if hasattr(part, "generator"):
                part.generator = generator
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        first, every = (0, 1) if self.divides else (rank, world)
        last = None
        for batch in islice(self.loader, first, None, every):
            last = _pair(batch)
            yield last
        if self.own(rank, world) < self.count(world):  # every process takes part in each step
            yield last if last is not None else _pair(next(iter(self.loader)))

    def count(self, world: int = 1) -> int:
        return self.size if self.divides else -(-self.size // world)

    def own(self, rank: int, world: int) -> int:
        """The number of batches that are not repeats."""
        return self.size if self.divides else len(range(rank, self.size, world))

    def fingerprint(self) -> dict[str, Any]:
        """The dataset with the arguments it was made with, how it is batched, and the sampler with its options."""
        loader: Any = self.loader
        sampler = loader.sampler if loader.batch_size is not None else loader.batch_sampler or loader.sampler
        return {
            "dataset": loader.dataset,
            "examples": len(loader.dataset),
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "collate_fn": loader.collate_fn,
            "sampler": type(sampler),
            "sampler options": {k: v for k, v in vars(sampler).items() if k not in _OF_SAMPLERS and k[0] != "_"},
            "seed": self.seed,
        }


_OF_SAMPLERS = ("data_source", "dataset", "generator", "epoch")
"""Attributes that are described elsewhere, or that an epoch sets."""


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        found = f"{len(batch)} things" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"a DataLoader for fit must give pairs (x, target), not {found}")
    return batch[0], batch[1]


def as_source(data: Any, seed: int, *, shuffle: bool, batch_size: int = 32) -> Source:
    """A source from a source, a ``DataLoader`` or a pair (x, target); ``seed`` orders data without its own seed."""
    if isinstance(data, TensorSource):
        return data.seeded(seed) if shuffle else data
    if isinstance(data, DataLoader):
        return LoaderSource(data, seed)
    if isinstance(data, tuple | list) and len(data) == 2:
        return TensorSource(data[0], data[1], batch_size, shuffle=shuffle, seed=seed)
    if callable(getattr(data, "batches", None)) and callable(getattr(data, "count", None)):
        return data  # type: ignore[no-any-return]
    raise TypeError(
        "data must be a TensorSource, a DataLoader, a pair of tensors (x, target) or an object with batches(epoch, "
        f"rank, world) and count(world), not {type(data).__name__}"
    )


class MeanOf(Metric):
    """The mean over all examples of ``function(y, target)``, which returns one number per example or their mean."""

    total: Tensor
    count: Tensor

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: Any) -> None:
        value = torch.as_tensor(self.function(y, target), device=self.total.device).double()
        if value.numel() != 1 and value.shape != (len(y),):
            raise ValueError(
                f"the metric returned shape {tuple(value.shape)} for a batch of {len(y)}: it must return one number "
                f"per example, shape ({len(y)},), or their mean"
            )
        self.total += value.mean() * len(y)
        self.count += len(y)

    def compute(self) -> Tensor:
        return self.total / self.count


def as_metric(metric: Any, higher_is_better: bool | None) -> tuple[Metric, bool]:
    """(the metric, whether higher is better), from a torchmetrics metric or a function (y, target)."""
    score = metric_of(metric)
    own = getattr(metric, "higher_is_better", None)
    if None not in (own, higher_is_better) and bool(own) is not bool(higher_is_better):
        raise ValueError(
            f"{type(metric).__name__} says higher_is_better={own}, and fit was given {higher_is_better}: leave the "
            "argument out, or set higher_is_better on the class"
        )
    higher = own if higher_is_better is None else higher_is_better
    if higher is None:
        name = getattr(metric, "__name__", type(metric).__name__)
        raise ValueError(f"{name} does not say whether higher is better: give fit higher_is_better=True or False")
    return score, bool(higher)


def metric_of(metric: Any) -> Metric:
    """A torchmetrics metric as it is, a function (y, target) as the mean of its values."""
    if isinstance(metric, type) or not callable(metric):
        raise TypeError(f"metric must be a torchmetrics Metric or a function of (y, target), not {metric!r}")
    return metric if isinstance(metric, Metric) else MeanOf(metric)


def stream(*numbers: int) -> int:
    """A seed for one of many independent random streams."""
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        value ^= number & 0xFFFFFFFFFFFFFFFF
        value = (value * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value & 0x7FFFFFFFFFFFFFFF
