"""Rounding each output on its own: the largest label of a simplex, the nearer end of a box."""

from __future__ import annotations

import torch
from torch import Tensor

from spen.rounding.constraints import EMPTY, Constraints


def round_argmax(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
) -> Tensor:  # (B, rows, columns) long
    """ŷ_ij = argmax_a s_ija on valid arcs, the empty label elsewhere; groups and unique labels are not looked at.

    A tie goes to the label with the smaller number, so to the empty label first.
    """
    constraints.valid_scores(scores)
    return torch.where(constraints.mask, scores.argmax(dim=-1), EMPTY)


def round_threshold(
    y: Tensor,  # any shape, in [0, 1]
    *,
    threshold: float = 0.5,
) -> Tensor:  # the same shape, bool
    """ŷ_i = [y_i > θ]: the corner of the box nearest to y when θ = ½."""
    if not bool(torch.isfinite(y).all()):
        raise ValueError("y holds nan or infinity; a threshold needs finite numbers")
    return y > threshold
