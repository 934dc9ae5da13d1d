"""Losses, targets and domains that run together but do not belong together."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from spen.domains import Box, Reals, Simplex
from spen.mismatch import refuse_foreign_entropy
from spen.objectives.losses import binary_log_loss, log_loss, squared_error
from spen.protocols import Domain, Loss

_BY_COORDINATES = (log_loss, binary_log_loss, squared_error)  # they compare y with a target of its shape


class Once:
    """The objects that a check has passed for last, held weakly: the check is not made again for them."""

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[Any], ...] = ()

    def knows(self, *things: Any) -> bool:
        return len(self._last) == len(things) and all(ref() is t for ref, t in zip(self._last, things, strict=True))

    def remember(self, *things: Any) -> None:
        self._last = tuple(weakref.ref(thing) for thing in things)

    def __reduce__(self) -> tuple[type[Once], tuple[()]]:
        return Once, ()


def refuse_mismatch(model: Any, target: Any, once: Once, *losses: Loss) -> None:
    """Raise ValueError if a loss, the target or an entropy does not belong to the domain of the model.

    The target is looked at in the first batch alone: on a GPU the host has to wait for that.
    """
    domain = getattr(getattr(model, "minimizer", None), "domain", None)
    if domain is None:
        return
    for loss in losses:
        _refuse_loss(loss, domain)
    if torch.compiler.is_compiling() or once.knows(model.energy, domain):
        return
    refuse_foreign_entropy(model.energy, domain)
    if isinstance(domain, Simplex) and any(loss is known for loss in losses for known in _BY_COORDINATES):
        _refuse_target(target, domain)
    once.remember(model.energy, domain)


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
