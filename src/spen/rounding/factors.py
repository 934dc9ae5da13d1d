"""Linear programs made of at-most-one factors, many at once, and the projections AD³ needs for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactorGraph:
    """max ⟨gain, z⟩ s.t. 0 ≤ z ≤ 1 and Σ_{i ∈ f} z_i ≤ 1 for every factor f; problems are padded to one size.

    A padded variable has gain 0 and is in no factor, a padded factor is empty.
    """

    gain: Tensor  # (P, V) float64
    members: Tensor  # (P, F, V) bool, F ≥ 1

    def __getitem__(self, kept: Tensor) -> FactorGraph:
        return FactorGraph(self.gain[kept], self.members[kept])

    def totals(self, z: Tensor) -> Tensor:  # (P, V) → (P, F)
        """Σ_{i ∈ f} z_i."""
        return (self.members * z[:, None]).sum(2)

    def prices(self, u: Tensor) -> Tensor:  # (P, F) → (P, V)
        """Σ_{f ∋ i} u_f."""
        return (self.members * u[..., None]).sum(1)


def project(point: Tensor) -> Tensor:  # (…, L), −inf outside of the factor → (…, L)
    """argmin ½‖z − point‖² s.t. z ≥ 0, Σz ≤ 1: z = max(0, point − τ).

    With the point sorted downwards, τ = max_k (Σ_{j ≤ k} point_j − 1)/k; where it is negative the sum is slack, τ = 0.
    """
    ordered = point.sort(dim=-1, descending=True).values
    k = torch.arange(1, point.shape[-1] + 1, dtype=point.dtype, device=point.device)
    tau = ((ordered.cumsum(dim=-1) - 1.0) / k).amax(dim=-1, keepdim=True).clamp(min=0.0)
    return (point - tau).clamp(min=0.0)


def repair(graph: FactorGraph, z: Tensor) -> tuple[Tensor, Tensor]:  # (P, V) → (P, V), (P,)
    """(a feasible point near z, its value): every variable is shrunk by its most crowded factor."""
    z = z.clamp(0.0, 1.0)
    crowd = graph.totals(z).clamp(min=1.0)
    z = z / torch.where(graph.members, crowd[..., None], 1.0).amax(1)
    return z, (graph.gain * z).sum(1)


def bound(graph: FactorGraph, u: Tensor) -> Tensor:  # (P, F) → (P,)
    """Σ_f u_f + Σ_i max(0, gain_i − Σ_{f ∋ i} u_f) ≥ the optimum, for any u ≥ 0.

    Weak duality, with z_i ≤ 1 paying for whatever the prices u leave uncovered.
    """
    u = u.clamp(min=0.0)
    return u.sum(1) + (graph.gain - graph.prices(u)).clamp(min=0.0).sum(1)


def polish(graph: FactorGraph, z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:  # (P, V), (P, F) → the same
    """Project (z, u) onto the equations of the face they point at: Σ_{i ∈ f} z_i = 1 and Σ_{f ∋ i} u_f = gain_i.

    By complementary slackness a variable is in play when it exceeds its reduced cost, a factor is tight when its price
    exceeds its slack. Near the optimum the guess is right and the projection lands on it; a wrong guess does no harm,
    because `repair` and `bound` evaluate the result.
    """
    play = (z > graph.prices(u) - graph.gain).to(z.dtype)
    tight = (u > 1.0 - graph.totals(z)).to(z.dtype)
    matrix = graph.members * play[:, None] * tight[..., None]
    across, z, u, gain = matrix.transpose(1, 2), z * play, u * tight, graph.gain * play
    # Redundant equations make M Mᵀ singular: a small ridge, and a second step that removes its error.
    ridge = 1e-9 * torch.eye(matrix.shape[1], dtype=z.dtype, device=z.device)
    root = torch.linalg.cholesky(matrix @ across + ridge)
    for _ in range(2):
        missing = (tight - (matrix @ z[..., None])[..., 0])[..., None]
        z = z + (across @ torch.cholesky_solve(missing, root))[..., 0]
        unpaid = (gain - (across @ u[..., None])[..., 0])[..., None]
        u = u + torch.cholesky_solve(matrix @ unpaid, root)[..., 0]
    return z, u
