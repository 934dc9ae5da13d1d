"""How far a labelling is from the feasible set Q, counted constraint by constraint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spen.rounding.constraints import EMPTY, Constraints


@dataclass(frozen=True)
class Violations:
    """overlaps = Σ_{j<k in conflict} [y_ij ≠ 0][y_ik ≠ 0],  repeats = Σ_a max(0, Σ_j [y_ij = a] − 1),  per row i."""

    overlaps: Tensor  # (B, rows) long: pairs of labelled columns that share a group
    repeats: Tensor  # (B, rows) long: uses of unique labels beyond the first
    invalid: Tensor  # (B, rows) long: labelled arcs outside the mask

    @property
    def total(self) -> Tensor:  # (B, rows) long
        """overlaps + repeats + invalid."""
        return self.overlaps + self.repeats + self.invalid


def count_violations(
    y: Tensor,  # (B, rows, columns) integer labels, or (B, rows, columns, labels) soft predictions
    constraints: Constraints,
) -> Violations:
    """Violations of a labelling, or of the argmax of a soft prediction: what rounding has left to repair.

    Arcs outside the mask enter `invalid` alone, so that padding never counts as an overlap or a repeat.
    """
    if y.dim() == 4 and y.is_floating_point():
        constraints.check_labels(y.shape[-1])
        y = y.argmax(dim=-1)
    if y.shape != constraints.mask.shape or y.is_floating_point():
        raise ValueError(
            f"y is {y.dtype} of shape {tuple(y.shape)} but must hold integer labels of shape "
            f"{tuple(constraints.mask.shape)}, or real numbers with one more dimension for the labels"
        )
    labelled = y != EMPTY
    used = labelled & constraints.mask
    count = used.to(torch.float32)
    # Every pair is met twice, once from either end.
    overlaps = ((count @ constraints.conflicts().to(torch.float32)) * count).sum(-1).round().long() // 2
    repeats = torch.zeros_like(overlaps)
    for label in constraints.unique_labels:
        repeats += ((y == label) & used).sum(-1).sub(1).clamp(min=0)
    return Violations(overlaps, repeats, (labelled & ~constraints.mask).sum(-1))
