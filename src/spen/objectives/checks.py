"""Checks that objectives share: do loss, target, energy and domain fit together? And y* as a point of the domain."""

from __future__ import annotations

import weakref
from abc import ABC
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from spen.arguments import require_function
from spen.domains import Box, Reals, Simplex
from spen.mismatch import refuse_foreign_entropy
from spen.model import SPEN
from spen.objectives.losses import binary_log_loss, log_loss, squared_error
from spen.protocols import Domain, Features, Loss, Objective
from spen.tensors import tensors_of

_BY_COORDINATES = (log_loss, binary_log_loss, squared_error)  # they compare y with a target of its shape


class Once:
    """Runs a check unless the object passed it the last time. Holds the object weakly."""

    def __init__(self) -> None:
        self._last: weakref.ref[Any] | None = None

    def check(self, thing: Any, check: Callable[[], None]) -> None:
        if self._last is None or self._last() is not thing:
            check()
            self._last = weakref.ref(thing)

    def __reduce__(self) -> tuple[type[Once], tuple[()]]:  # a weak reference cannot be pickled
        return Once, ()


class LossObjective(Objective, ABC):
    """An objective with a loss ℓ(y, y*), or a cost Δ(y, y*), per example."""

    def __init__(self, loss: Loss) -> None:
        require_function(loss, "loss", "loss(y, target)")
        self.loss = loss
        self._once = Once()

    def refuse_mismatch(self, model: SPEN, target: Any, *others: Loss) -> None:
        """Raise ValueError if a loss, the target or an entropy does not belong to the domain of the model.

        The target is only checked in the first batch: on a GPU the host has to wait for the result.
        """
        domain = getattr(getattr(model, "minimizer", None), "domain", None)
        if domain is None:  # a wrapper such as DistributedDataParallel
            return
        losses = (self.loss, *others)
        for loss in losses:
            _refuse_loss(loss, domain)
        if torch.compiler.is_compiling():
            return
        refuse_foreign_entropy(model.energy, domain)
        if isinstance(domain, Simplex) and any(loss in _BY_COORDINATES for loss in losses):
            self._once.check(domain, lambda: _refuse_target(target, domain))

    def cost(self, y: Tensor, target: Any) -> Tensor:  # (B,)
        """Δ(y, y*) of each example; a loss that returns the mean of the batch is refused."""
        cost = self.loss(y, target)
        if cost.shape != (y.shape[0],):
            raise ValueError(
                f"{type(self).__name__} needs Δ per example, shape ({y.shape[0]},); the loss returned "
                f"{tuple(cost.shape)}: sum over everything but the batch"
            )
        return cost


def require_truth(truth: Any) -> None:
    """Raise TypeError unless ``truth`` is None or a function of the target."""
    if truth is not None:
        require_function(truth, "truth", "truth(target)")


def point_of(target: Any, truth: Callable[[Any], Tensor] | None, dtype: torch.dtype) -> Tensor:
    """y* as a point of the domain, ``truth(target)`` or the target itself: labels may be integers, data in double."""
    point: Tensor = target if truth is None else truth(target)
    return point.to(dtype)


def type_of(model: SPEN, features: Features) -> torch.dtype:
    """The floating-point type of the model's parameters, or else of its features."""
    tensors = chain(model.parameters(), tensors_of(features))
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


def _refuse_loss(loss: Loss, domain: Domain) -> None:
    if loss is log_loss and isinstance(domain, Box):
        raise ValueError(
            f"log_loss has no cost for labels that are on and should be off, so over {domain} every label would be "
            "switched on: use binary_log_loss"
        )
    outside = isinstance(domain, Reals) or (isinstance(domain, Box) and not domain.within_unit)
    if outside and (loss is log_loss or loss is binary_log_loss):
        raise ValueError(
            f"{loss.__name__} needs probabilities, but {domain} lets y leave [0, 1]: use squared_error, or a Simplex "
            "or Box() as the domain"
        )


def _refuse_target(target: Any, domain: Simplex) -> None:
    """One-hot images (B, K, H, W) over a Simplex that normalises W."""
    if type(target) is not Tensor or not -target.dim() < domain.dim < target.dim() or not target.numel():
        return
    own = domain.dim % target.dim()
    if _sums_to_one(target, own, masked=True):
        return
    for dim in range(1, target.dim()):
        if dim != own and target.shape[dim] > 1 and _sums_to_one(target, dim):
            raise ValueError(
                f"the target of shape {tuple(target.shape)} sums to 1 along dimension {dim}, but {domain} normalises y "
                f"along dimension {own}: write Simplex(dim={dim})"
            )


def _sums_to_one(target: Tensor, dim: int, *, masked: bool = False) -> bool:
    """``masked`` allows sums of 0, as of padding."""
    sums = target.sum(dim)
    fine = (sums - 1).abs() <= 0.01
    return bool((fine | (sums == 0) if masked else fine).all())
