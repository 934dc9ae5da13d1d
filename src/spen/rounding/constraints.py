"""The feasible set Q of a labelling, how far a labelling is from it, and the solution of a relaxed problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY = 0
"""The label of an unused arc, which violates no constraint."""


@dataclass(frozen=True)
class Constraints:
    """Q = {y : one label per arc, Σ_{j ∈ group} [y_ij ≠ 0] ≤ 1, Σ_j [y_ij = a] ≤ 1 for a unique label a}.

    Row i (a predicate, say) shares no constraint with another row, so each row is solved separately.
    Arcs outside the mask carry the empty label 0.
    """

    mask: Tensor  # (B, rows, columns) bool: arcs that may carry a label
    groups: Tensor  # (B, groups, columns) bool: columns of which a row may use one at most
    unique_labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unique_labels", tuple(int(label) for label in self.unique_labels))
        if self.mask.dtype != torch.bool or self.mask.dim() != 3:
            raise ValueError(
                f"mask is {self.mask.dtype} of shape {tuple(self.mask.shape)} "
                "but must be bool of shape (B, rows, columns)"
            )
        batch, _, columns = self.mask.shape
        fits = self.groups.dim() == 3 and (self.groups.shape[0], self.groups.shape[2]) == (batch, columns)
        if self.groups.dtype != torch.bool or not fits:
            raise ValueError(
                f"groups is {self.groups.dtype} of shape {tuple(self.groups.shape)} but must be bool of shape "
                f"({batch}, groups, {columns}) to go with the mask"
            )
        if EMPTY in self.unique_labels:
            raise ValueError("unique_labels holds the empty label 0, which any number of arcs may carry; leave it out")
        if len(set(self.unique_labels)) != len(self.unique_labels):
            raise ValueError(f"unique_labels {self.unique_labels} names a label twice; name each once")

    @classmethod
    def from_spans(
        cls,
        mask: Tensor,  # (B, rows, columns) bool
        starts: Tensor,  # (B, columns) integer
        ends: Tensor,  # (B, columns) integer, inclusive
        unique_labels: Sequence[int] = (),
    ) -> Constraints:
        """groups_jk = [start_k ≤ start_j ≤ end_k]: the intervals that cover a point exclude one another.

        Every maximal clique of intervals meets at the start of its last interval, so the starts are points enough.
        """
        expected = (mask.shape[0], mask.shape[-1])
        if tuple(starts.shape) != expected or tuple(ends.shape) != expected:
            raise ValueError(
                f"starts and ends have shapes {tuple(starts.shape)} and {tuple(ends.shape)} but must both be {expected}"
            )
        if bool((ends < starts).any()):
            raise ValueError("a span ends before it starts; ends are inclusive, so end ≥ start")
        points = starts[:, :, None]
        return cls(mask, (starts[:, None, :] <= points) & (points <= ends[:, None, :]), tuple(unique_labels))

    def valid_scores(
        self,
        scores: Tensor,  # (B, rows, columns, labels)
    ) -> Tensor:  # (valid arcs, labels)
        """s_ija for (i, j) in the mask, in its order; an error unless every label of every arc has a finite score."""
        if scores.dim() != 4 or scores.shape[:3] != self.mask.shape:
            raise ValueError(
                f"scores have shape {tuple(scores.shape)} but must be {tuple(self.mask.shape)} with a dimension for "
                "the labels after it; give one score per arc and label"
            )
        if scores.shape[3] < 1 or not scores.is_floating_point():
            raise ValueError(
                f"scores are {scores.dtype} over {scores.shape[3]} labels but must be real numbers over 1 or more"
            )
        self.check_labels(scores.shape[3])
        valid = scores.detach()[self.mask]
        # Infinities and nan survive a sum, which reads the scores once where isfinite makes four passes.
        if not bool(torch.isfinite(valid.sum(dtype=torch.float64))):
            raise ValueError("scores of valid arcs hold nan or infinity; clamp log-probabilities before rounding")
        return valid

    def check_labels(self, labels: int) -> None:
        """Raise unless every unique label is one of the labels 1 … A − 1."""
        for label in self.unique_labels:
            if not 0 < label < labels:
                raise ValueError(f"unique label {label} is out of range; there are {labels} labels, 0 to {labels - 1}")

    def conflicts(self) -> Tensor:  # (B, columns, columns) bool
        """conflicts_jk = [j ≠ k share a group]."""
        members = self.groups.to(torch.float32)
        shared = members.transpose(1, 2) @ members > 0
        return shared & ~torch.eye(shared.shape[-1], dtype=torch.bool, device=shared.device)


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
    """Violations of a labelling, or of the argmax of a soft prediction.

    Arcs outside the mask count as `invalid` only, so that padding is never an overlap or a repeat.
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
    # Every pair is counted twice, once from either end.
    overlaps = ((count @ constraints.conflicts().to(torch.float32)) * count).sum(-1).round().long() // 2
    repeats = torch.zeros_like(overlaps)
    for label in constraints.unique_labels:
        repeats += ((y == label) & used).sum(-1).sub(1).clamp(min=0)
    return Violations(overlaps, repeats, (labelled & ~constraints.mask).sum(-1))


@dataclass(frozen=True)
class Relaxation:
    """y with ⟨s, y⟩ = value ≤ max over the LP relaxation ≤ bound, row by row; sums run over the valid arcs."""

    y: Tensor  # (B, rows, columns, labels) float64, feasible for the LP
    value: Tensor  # (B, rows) float64
    bound: Tensor  # (B, rows) float64, from a dual solution
    iterations: Tensor  # (B, rows) long; 0 where the plain argmax was feasible

    @property
    def gap(self) -> Tensor:  # (B, rows) float64
        """bound − value ≥ 0: how far from the optimum y can be at most."""
        return (self.bound - self.value).clamp(min=0.0)
