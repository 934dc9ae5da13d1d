"""Linear programs made of XOR and at-most-one factors, many at once, and the projections AD³ needs for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactorGraph:
    """max ⟨gain, z⟩ s.t. z ≥ 0 and Σ_{i ∈ f} z_i = 1 (XOR) or ≤ 1 (at most one) for every factor f.

    The problems of a batch lie end to end: variables and factors are sorted by the problem that owns them. A variable
    in no factor ranges over [0, 1].
    """

    gain: Tensor  # (V,) float64
    owner: Tensor  # (V,) long: the variable's problem
    members: Tensor  # (F, L) long: variables of a factor, padded with V
    factor_owner: Tensor  # (F,) long: the factor's problem
    exact: Tensor  # (F,) bool: XOR where true, at most one elsewhere
    problems: int

    def per_variable(self, values: Tensor) -> Tensor:  # (F, L) → (V + 1,)
        """Σ_{f ∋ i} values_fi; the last place gathers the padding."""
        out = values.new_zeros(len(self.gain) + 1)
        return out.index_add_(0, self.members.flatten(), values.flatten())

    def per_problem(self, values: Tensor, owner: Tensor) -> Tensor:  # (V,) or (F,) → (P,)
        """Σ of the values a problem owns."""
        return values.new_zeros(self.problems).index_add_(0, owner, values)

    def totals(self, z: Tensor) -> Tensor:  # (V,) → (F,)
        """Σ_{i ∈ f} z_i."""
        return _pad(z)[self.members].sum(dim=1)

    def prices(self, u: Tensor) -> Tensor:  # (F,) → (V,)
        """Σ_{f ∋ i} u_f."""
        return self.per_variable(u[:, None].expand_as(self.members))[:-1]

    def select(self, kept: Tensor) -> tuple[FactorGraph, Tensor, Tensor]:
        """The problems kept (P,) bool, and which variables and factors they own."""
        variables, factors = kept[self.owner], kept[self.factor_owner]
        problem = kept.cumsum(0) - 1
        count = int(variables.sum())
        name = torch.full((len(self.gain) + 1,), count, dtype=torch.long, device=kept.device)
        name[:-1][variables] = torch.arange(count, device=kept.device)
        graph = FactorGraph(
            gain=self.gain[variables],
            owner=problem[self.owner[variables]],
            members=name[self.members[factors]],
            factor_owner=problem[self.factor_owner[factors]],
            exact=self.exact[factors],
            problems=int(kept.sum()),
        )
        return graph, variables, factors


def project(
    point: Tensor,  # (F, L), −inf where padded
    exact: Tensor,  # (F,) bool
) -> Tensor:  # (F, L)
    """argmin ½‖z − point‖² s.t. z ≥ 0, Σz = 1 (exact) or Σz ≤ 1: z = max(0, point − τ).

    With the point sorted downwards, τ = max_k (Σ_{j ≤ k} point_j − 1)/k on the simplex; under Σz ≤ 1 the multiplier τ
    of the sum may not be negative, and where it would be the sum is slack and τ = 0.
    """
    ordered = point.sort(dim=1, descending=True).values
    k = torch.arange(1, point.shape[1] + 1, dtype=point.dtype, device=point.device)
    tau = ((ordered.cumsum(dim=1) - 1.0) / k).amax(dim=1)
    tau = torch.where(exact, tau, tau.clamp(min=0.0))
    return (point - tau[:, None]).clamp(min=0.0)


def repair(
    graph: FactorGraph,
    z: Tensor,  # (V,)
) -> tuple[Tensor, Tensor]:  # (V,), (P,)
    """(a feasible point near z, its value per problem); the value is −inf where an XOR could not be met.

    Shrinking every variable by its most crowded factor meets all at-most-ones.
    """
    z = z.clamp(0.0, 1.0)
    crowd = graph.totals(z).clamp(min=1.0)
    most = torch.ones(len(z) + 1, dtype=z.dtype, device=z.device)
    most.scatter_reduce_(0, graph.members.flatten(), crowd[:, None].expand_as(graph.members).flatten(), "amax")
    z = z / most[:-1]
    value = graph.per_problem(graph.gain * z, graph.owner)
    if bool(graph.exact.any()):
        missed = graph.exact & (graph.totals(z) < 1.0 - 1e-9)
        value[graph.factor_owner[missed]] = -torch.inf
    return z, value


def bound(
    graph: FactorGraph,
    u: Tensor,  # (F,)
) -> Tensor:  # (P,)
    """Σ_f u_f + Σ_i max(0, gain_i − Σ_{f ∋ i} u_f) ≥ the optimum, for any u with u ≥ 0 on the at-most-ones.

    Weak duality, with z_i ≤ 1 paying for whatever the prices u leave uncovered.
    """
    u = torch.where(graph.exact, u, u.clamp(min=0.0))
    uncovered = (graph.gain - graph.prices(u)).clamp(min=0.0)
    return graph.per_problem(u, graph.factor_owner) + graph.per_problem(uncovered, graph.owner)


def polish(
    graph: FactorGraph,
    z: Tensor,  # (V,)
    u: Tensor,  # (F,)
) -> tuple[Tensor, Tensor]:  # (V,), (F,)
    """Project (z, u) onto the equations of the face they point at: Σ_{i ∈ f} z_i = 1 and Σ_{f ∋ i} u_f = gain_i.

    By complementary slackness a variable is in play when it exceeds its reduced cost, a factor is tight when its price
    exceeds its slack. Near the optimum the guess is right and the projection lands on it; a wrong guess does no harm,
    for what comes out is judged by `repair` and `bound`.
    """
    play = z > graph.prices(u) - graph.gain
    tight = graph.exact | (u > 1.0 - graph.totals(z))
    matrix = _dense(graph)
    variable, factor = _positions(graph.owner, graph.problems), _positions(graph.factor_owner, graph.problems)
    problems, factors, variables = matrix.shape

    def spread(values: Tensor, owner: Tensor, place: Tensor, width: int) -> Tensor:
        out = values.new_zeros(problems, width)
        out[owner, place] = values
        return out

    in_play = spread(play.to(z.dtype), graph.owner, variable, variables)
    is_tight = spread(tight.to(z.dtype), graph.factor_owner, factor, factors)
    matrix = matrix * in_play[:, None, :] * is_tight[:, :, None]
    zs = spread(z, graph.owner, variable, variables) * in_play
    us = spread(u, graph.factor_owner, factor, factors) * is_tight
    gains = spread(graph.gain, graph.owner, variable, variables) * in_play
    # Redundant equations make M Mᵀ singular: a small ridge, and a second step that removes its error.
    ridge = 1e-9 * torch.eye(factors, dtype=z.dtype, device=z.device)
    root = torch.linalg.cholesky(matrix @ matrix.transpose(1, 2) + ridge)
    for _ in range(2):
        missing = is_tight[..., None] - matrix @ zs[..., None]
        zs = zs + (matrix.transpose(1, 2) @ torch.cholesky_solve(missing, root))[..., 0]
        unpaid = gains[..., None] - matrix.transpose(1, 2) @ us[..., None]
        us = us + torch.cholesky_solve(matrix @ unpaid, root)[..., 0]
    return zs[graph.owner, variable], us[graph.factor_owner, factor]


def _dense(graph: FactorGraph) -> Tensor:  # (P, factors, variables)
    variable, factor = _positions(graph.owner, graph.problems), _positions(graph.factor_owner, graph.problems)
    row, place = (graph.members < len(graph.gain)).nonzero(as_tuple=True)
    size = [int(places.max()) + 1 if len(places) else 0 for places in (factor, variable)]
    matrix = graph.gain.new_zeros(graph.problems, *size)
    matrix[graph.factor_owner[row], factor[row], variable[graph.members[row, place]]] = 1.0
    return matrix


def _positions(owner: Tensor, problems: int) -> Tensor:
    """The place of each variable or factor among those of its problem."""
    sizes = torch.bincount(owner, minlength=problems)
    return torch.arange(len(owner), device=owner.device) - (sizes.cumsum(0) - sizes)[owner]


def _pad(z: Tensor) -> Tensor:
    return torch.cat([z, z.new_zeros(1)])
