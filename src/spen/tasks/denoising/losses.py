"""Inputs, targets and losses: squared error over the pixels whose truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from spen.tasks.denoising.energy import Observation

if TYPE_CHECKING:
    from spen.tasks.denoising.data import Frame


class Target(NamedTuple):
    """y* and where it counts."""

    truth: Tensor  # (B, 1, H, W)
    scored: Tensor  # (B, 1, H, W), 1 where the truth is known and the sensor had a reading


def observation(frame: Frame) -> Observation:
    """x: the reading and its mask. Parts (B, 1, H, W)."""
    return Observation(frame.noisy, frame.valid.to(frame.noisy.dtype))


def planes(frame: Frame) -> Observation:
    """x of one frame, (C, H, W): its planes as a batch, (C, 1, H, W)."""
    return Observation(*(part[:, None] for part in observation(frame)))


def target(frame: Frame, every_pixel: bool = False) -> Target:
    """y* and its scored pixels, or all of them."""
    scored = torch.ones_like(frame.truth) if every_pixel else frame.scored.to(frame.truth.dtype)
    return Target(frame.truth, scored)


def masked_squared_error(y: Tensor, target: Target) -> Tensor:
    """Σ s(y − y*)² / Σ s, per example."""
    return summed_squared_error(y, target) / target.scored.flatten(1).sum(1).clamp_min(1)


def log_squared_error(y: Tensor, target: Target, *, floor: float) -> Tensor:
    """½ log(Σ s(y − y*)² / Σ s + floor²), per example: a decibel counts the same at every level of noise."""
    return 0.5 * (masked_squared_error(y, target) + floor**2).log()


def summed_squared_error(y: Tensor, target: Target) -> Tensor:
    """Σ s(y − y*)², per example: Δ of the structured SVM, on the scale of an energy that sums over pixels."""
    return ((y - target.truth).square() * target.scored).flatten(1).sum(1)
