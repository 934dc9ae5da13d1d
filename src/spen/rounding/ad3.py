"""AD³, alternating directions dual decomposition (Martins et al. 2011), for all problems of a batch together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from spen.rounding.candidates import Candidates, front, prune, write
from spen.rounding.constraints import EMPTY, Constraints, Relaxation
from spen.rounding.factors import FactorGraph, bound, polish, project, repair
from spen.rounding.greedy import chosen_gain, resolve

CHECK_EVERY = 10
"""Iterations between two checks of the residuals and the duality gap; a check costs about as much as ten iterations."""

SMALLEST_PENALTY = 1e-5
"""The smallest penalty, relative to the first; gains that differ by less than this count as tied."""


class Options(TypedDict, total=False):
    """When AD³ stops and how it steps; `solve` has the defaults."""

    tolerance: float
    max_iterations: int
    penalty: float
    over_relaxation: float


@dataclass(frozen=True)
class FactorSolution:
    """z feasible with ⟨gain, z⟩ = value ≤ optimum ≤ bound, problem by problem."""

    z: Tensor  # (P, V) float64
    value: Tensor  # (P,) float64
    bound: Tensor  # (P,) float64
    iterations: Tensor  # (P,) long


def round_ad3(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
    **options: Unpack[Options],
) -> Tensor:  # (B, rows, columns) long
    """argmax_{y ∈ Q} ⟨s, y⟩ through its LP relaxation; fractional answers are rounded by the greedy heuristics.

    The heuristics take the LP's masses for priorities and break ties by the gains. They also run on the gains alone,
    and the better of the two labellings is kept, so the score is never below that of `round_greedy`. The options are
    tolerance, max_iterations, penalty and over_relaxation.
    """
    plain, candidates = prune(scores, constraints)
    _, mass = _relax(candidates, options)
    guided = resolve(candidates, _lexicographic(mass, candidates.gain))
    greedy = resolve(candidates, candidates.gain)
    better = chosen_gain(candidates, greedy) > chosen_gain(candidates, guided)
    return write(plain, candidates, torch.where(better[:, None], greedy, guided))


def relax_ad3(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
    **options: Unpack[Options],
) -> Relaxation:
    """max ⟨s, y⟩ over the LP relaxation of Q, with a dual bound on the optimum.

    The tolerance is relative to a row's largest gain over the empty label. A row that has not reached it after
    max_iterations is returned with its gap.
    """
    plain, candidates = prune(scores, constraints)
    solution, mass = _relax(candidates, options)
    batch, rows, _, labels = scores.shape
    y = torch.nn.functional.one_hot(plain.flatten(0, 1), labels).to(torch.float64)
    y[candidates.row] = 0.0
    problem, k, slot = candidates.open.nonzero(as_tuple=True)
    where = (candidates.row[problem], candidates.arc[problem, k], candidates.label[problem, k, slot])
    y[where] = mass[problem, k, slot]
    y[candidates.row, :, EMPTY] = 1.0 - y[candidates.row].sum(dim=-1)

    valid = scores.detach().to(torch.float64).masked_fill(~constraints.mask[..., None], 0.0).flatten(0, 1)
    value = (valid * y).sum(dim=(1, 2))
    upper = value.clone()
    upper[candidates.row] = valid[candidates.row, :, EMPTY].sum(dim=-1) + solution.bound
    iterations = torch.zeros(len(value), dtype=torch.long, device=value.device)
    iterations[candidates.row] = solution.iterations
    shape = (batch, rows)
    return Relaxation(y.reshape(scores.shape), value.reshape(shape), upper.reshape(shape), iterations.reshape(shape))


def solve(
    graph: FactorGraph,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 2000,
    penalty: float = 0.15,
    over_relaxation: float = 1.4,
) -> FactorSolution:
    """min over copies q_f of −Σ_f ⟨gain_f + λ_f, q_f⟩ + η/2 Σ_f ‖q_f − p‖², then p = mean of the copies, then λ.

    Every factor has its own copy of its variables and a share of their gains; λ moves the gains between the copies
    until they agree. The penalty η of a problem follows its two residuals. A problem leaves the batch once a feasible
    point reaches the dual bound, which proves the point optimal; the problems do not influence each other.
    """
    if tolerance < 0 or max_iterations < 1 or penalty <= 0:
        raise ValueError(
            f"AD³ got tolerance {tolerance}, max_iterations {max_iterations}, penalty {penalty}; "
            "they must be ≥ 0, ≥ 1 and > 0"
        )
    if not 0 < over_relaxation < 2:
        raise ValueError(
            f"over_relaxation {over_relaxation} must lie between 0 and 2 for AD³ to converge; 1 is plain AD³"
        )
    # In units of the largest gain one penalty suits all problems.
    scale = graph.gain.abs().amax(dim=1).clamp(min=torch.finfo(graph.gain.dtype).tiny)
    state = _State(FactorGraph(graph.gain / scale[:, None], graph.members), penalty, over_relaxation)
    while len(state.problem) and state.steps < max_iterations:
        for _ in range(min(CHECK_EVERY, max_iterations - state.steps)):
            state.step()
        state.check(tolerance)
    return FactorSolution(state.z, state.value * scale, state.bound * scale, state.iterations)


class _State:
    """The state of the problems still running, and the best found for every problem of the batch."""

    def __init__(self, graph: FactorGraph, penalty: float, over_relaxation: float) -> None:
        self.graph, self.over_relaxation, self.steps, self.first_penalty = graph, over_relaxation, 0, penalty
        self.z = torch.zeros_like(graph.gain)
        self.value = graph.gain.new_full((len(graph.gain),), -torch.inf)
        self.bound, self.iterations = -self.value, torch.zeros_like(self.value, dtype=torch.long)
        self.problem = torch.arange(len(graph.gain), device=graph.gain.device)
        self.penalty = torch.full_like(self.value, penalty)
        degree = graph.members.sum(1)
        self.weight = torch.where(degree > 0, 1.0 / degree.clamp(min=1), 0.0).to(graph.gain.dtype)
        # λ_f with the factor's share of the gains added; −inf keeps other variables out of every projection.
        self.message = torch.where(graph.members, (graph.gain * self.weight)[:, None], -torch.inf)
        # A variable in no factor is set once by the sign of its gain.
        self.unconstrained = ((degree == 0) & (graph.gain > 0)).to(graph.gain.dtype)
        self.p = self.unconstrained.clone()

    def step(self) -> None:
        """One round of AD³: copies, average, multipliers."""
        eta, members, before = self.penalty[:, None, None], self.graph.members, self.p[:, None]
        self.copies = project(before + self.message / eta)
        relaxed = torch.lerp(before.expand_as(self.copies), self.copies, self.over_relaxation)
        self.p = (relaxed * members).sum(1) * self.weight + self.unconstrained
        self.message = self.message - eta * (relaxed - self.p[:, None])
        self.drift = self.p - before[:, 0]
        self.steps += 1

    def check(self, tolerance: float) -> None:
        """Record the best points and bounds, drop problems proven optimal, and adapt the penalties of the others."""
        graph, u = self.graph, self.message.amax(dim=2).clamp(min=0.0)
        self._record(self.p, u)
        # AD³ comes close to the optimal face fast, but moves along it slowly; projecting onto its equations is faster.
        self._record(*polish(graph, self.p, u))
        self.iterations[self.problem] = self.steps
        disagree = ((self.copies - self.p[:, None]).square() * graph.members).sum(dim=(1, 2))
        drift = (self.drift.square()[:, None] * graph.members).sum(dim=(1, 2))
        # Copies that disagree need a larger penalty, an average that still moves a smaller one. A penalty without an
        # upper limit could grow until λ no longer changes, so it never exceeds the first.
        factor = torch.where(disagree > 10 * drift, 2.0, torch.where(drift > disagree, 0.25, 1.0))
        self.penalty = (self.penalty * factor).clamp(SMALLEST_PENALTY * self.first_penalty, self.first_penalty)
        running = self.bound[self.problem] - self.value[self.problem] > tolerance
        if not bool(running.all()):
            for name in ("graph", "problem", "penalty", "weight", "message", "unconstrained", "p"):
                setattr(self, name, getattr(self, name)[running])

    def _record(self, z: Tensor, u: Tensor) -> None:
        z, value = repair(self.graph, z)
        better = value > self.value[self.problem]
        self.value[self.problem[better]], self.z[self.problem[better]] = value[better], z[better]
        self.bound[self.problem] = torch.minimum(self.bound[self.problem], bound(self.graph, u))


def _relax(candidates: Candidates, options: Options) -> tuple[FactorSolution, Tensor]:
    """The LP solution of every problem and its masses (P, K, 1 + U)."""
    if not bool(candidates.open.any()):
        nothing = candidates.gain.new_zeros(len(candidates.gain))
        return FactorSolution(nothing[:, None], nothing, nothing, nothing.long()), torch.zeros_like(candidates.gain)
    graph, place = factor_graph(candidates)
    solution = solve(graph, **options)
    mass = torch.zeros_like(candidates.gain).flatten(1).scatter_(1, place, solution.z)
    return solution, mass.view_as(candidates.gain) * candidates.open


def factor_graph(candidates: Candidates) -> tuple[FactorGraph, Tensor]:  # and (P, V) long: a variable's slot
    """One variable per open slot; at-most-ones over the groups, the unique labels and the slots of an arc.

    The XOR of an arc has become an at-most-one: its empty label is in no other factor and gains nothing, so it is the
    slack. An arc in a group needs no factor, for the group's sum contains the arc's.
    """
    open_, groups = candidates.open, candidates.groups
    _, arcs, slots = open_.shape
    crowded = open_ & (open_.sum(dim=2, keepdim=True) > 1) & ~groups.any(dim=1)[..., None]
    eye = torch.eye(max(arcs, slots), dtype=torch.bool, device=open_.device)
    repeated = open_ & (open_.sum(dim=1) > 1)[:, None, :]
    members = torch.cat(
        [
            (groups[..., None] & open_[:, None]).flatten(2),
            (eye[1:slots, None, :slots] & repeated[:, None]).flatten(2),
            (eye[:arcs, :arcs, None] & crowded[:, None]).flatten(2),
        ],
        dim=1,
    )
    width = int(open_.flatten(1).sum(1).max())
    place = open_.flatten(1).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    gain = (candidates.gain * open_).flatten(1).gather(1, place)
    members = front(members.gather(2, place[:, None].expand(-1, members.shape[1], -1)), members.any(2))
    if not members.shape[1]:
        members = members.new_zeros(len(gain), 1, width)
    return FactorGraph(gain, members), place


def _lexicographic(first: Tensor, second: Tensor) -> Tensor:
    """Ranks (P, …) by `first` to six digits, ties by `second`."""
    shape = first.shape
    first, second = (first.flatten(1) * 1e6).round(), second.flatten(1)
    order = second.argsort(dim=1)
    order = order.gather(1, first.gather(1, order).argsort(dim=1, stable=True))
    return order.argsort(dim=1).to(torch.float64).reshape(shape)
