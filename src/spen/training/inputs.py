"""What ``fit`` takes in the place of a source and of a metric: a DataLoader, a pair of tensors, a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import Metric

from spen.training.describing import described
from spen.training.sources import Source, TensorSource, stream

BATCH_SIZE = 32
"""Of a pair of tensors."""


def as_source(data: Any, seed: int, *, shuffle: bool) -> Source:
    """A source from a source, a ``DataLoader`` or a pair (x, target); ``seed`` orders what has no seed of its own."""
    if isinstance(data, TensorSource):
        return data.seeded(seed) if shuffle else data
    if isinstance(data, DataLoader):
        return LoaderSource(data, seed)
    if isinstance(data, tuple | list) and len(data) == 2:
        return TensorSource(data[0], data[1], BATCH_SIZE, shuffle=shuffle, seed=seed)
    if callable(getattr(data, "batches", None)) and callable(getattr(data, "count", None)):
        return data  # type: ignore[no-any-return]
    raise TypeError(
        "data must be a TensorSource, a DataLoader, a pair of tensors (x, target) or an object with batches(epoch, "
        f"rank, world) and count(world), not {type(data).__name__}"
    )


class LoaderSource:
    """The batches (x, target) of a ``DataLoader``, with its workers, sampler and augmentation.

    The loader's generator and that of its sampler are seeded anew for each epoch, so a resumed run sees the batches it
    would have seen. Of several processes each takes every n-th batch, and the last may repeat; a loader with a
    ``DistributedSampler`` shares them out itself.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        try:
            self.size = len(loader)
        except TypeError:
            raise TypeError("a DataLoader of an IterableDataset has no length: give a source of your own") from None
        self.loader, self.seed = loader, seed

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(stream(self.seed, epoch))
        self.loader.generator = generator
        samplers: tuple[Any, Any] = (self.loader.sampler, self.loader.batch_sampler)
        for sampler in samplers:
            if hasattr(sampler, "generator"):
                sampler.generator = generator
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        every = 1 if self._divides else world
        last = None
        for batch in islice(self.loader, 0 if self._divides else rank, None, every):
            last = _pair(batch)
            yield last
        if self.own(rank, world) < self.count(world):  # every process takes part in each step
            yield last if last is not None else _pair(next(iter(self.loader)))

    def count(self, world: int = 1) -> int:
        return self.size if self._divides else -(-self.size // world)

    def own(self, rank: int, world: int) -> int:
        """How many of its batches are no repeats."""
        return self.size if self._divides else len(range(rank, self.size, world))

    def fingerprint(self) -> dict[str, Any]:
        """What a DataLoader says of its data: the class and length of the dataset, and the size of a batch."""
        dataset: Any = self.loader.dataset
        return {
            "dataset": described(type(dataset)),
            "examples": len(dataset),
            "batch_size": self.loader.batch_size,
            "sampler": described(type(self.loader.sampler)),
            "seed": self.seed,
        }

    @property
    def _divides(self) -> bool:
        return isinstance(self.loader.sampler, DistributedSampler)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        found = f"{len(batch)} things" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"a DataLoader for fit must give pairs (x, target), not {found}")
    return batch[0], batch[1]


class MeanOf(Metric):
    """The mean over all examples of ``function(y, target)``, one number per example or their mean."""

    total: Tensor
    count: Tensor

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: Any) -> None:
        value = torch.as_tensor(self.function(y, target), device=self.total.device).double()
        self.total += value.sum() * (len(y) if value.dim() == 0 else 1)
        self.count += len(y)

    def compute(self) -> Tensor:
        return self.total / self.count


def as_metric(metric: Any, higher_is_better: bool | None) -> tuple[Metric, bool]:
    """(the metric, whether higher is better), from a torchmetrics metric or a function (y, target)."""
    own = getattr(metric, "higher_is_better", None)
    higher = own if higher_is_better is None else higher_is_better
    if isinstance(metric, type) or not callable(metric):
        raise TypeError(f"metric must be a torchmetrics Metric or a function of (y, target), not {metric!r}")
    if higher is None:
        name = getattr(metric, "__name__", type(metric).__name__)
        raise ValueError(f"{name} does not say whether higher is better: give fit higher_is_better=True or False")
    return (metric if isinstance(metric, Metric) else MeanOf(metric)), bool(higher)
