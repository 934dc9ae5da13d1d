"""The answer of a relaxed problem, with the proof of how good it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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

    @property
    def integral(self) -> Tensor:  # (B, rows) bool
        """Is every arc's largest label 1? Then y solves the integer problem too, as far as the gap allows."""
        return (self.y.amax(dim=-1) > 1.0 - 1e-6).all(dim=-1)
