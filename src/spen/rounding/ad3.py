"""AD³, alternating directions dual decomposition (Martins et al. 2011), for all problems of a batch together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spen.rounding.candidates import Candidates, prune, write
from spen.rounding.constraints import EMPTY, Constraints
from spen.rounding.exclusive import chosen_gain, resolve
from spen.rounding.factors import FactorGraph, bound, polish, project, repair
from spen.rounding.relaxation import Relaxation

CHECK_EVERY = 10
"""Iterations between two looks at the residuals and the duality gap; a look costs about as much as ten iterations."""


SMALLEST_PENALTY = 1e-5
"""How far the penalty may fall, in units of the first; gains that differ by less than this count as tied."""


@dataclass(frozen=True)
class FactorSolution:
    """z feasible with ⟨gain, z⟩ = value ≤ optimum ≤ bound, problem by problem."""

    z: Tensor  # (V,) float64
    value: Tensor  # (P,) float64; −inf where no feasible point was found
    bound: Tensor  # (P,) float64
    iterations: Tensor  # (P,) long


def round_ad3(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 2000,
    penalty: float = 0.15,
    over_relaxation: float = 1.4,
) -> Tensor:  # (B, rows, columns) long
    """argmax_{y ∈ Q} ⟨s, y⟩ through its LP relaxation; fractional answers are rounded by the greedy heuristics.

    The heuristics take the LP's masses for priorities and break ties by the gains. They also run on the gains alone,
    and the better of the two labellings is kept, so the score is never below that of `round_greedy`.
    """
    plain, candidates = prune(scores, constraints)
    _, mass = _relax(candidates, tolerance, max_iterations, penalty, over_relaxation)
    guided = resolve(candidates, _lexicographic(mass, candidates.gain))
    greedy = resolve(candidates, candidates.gain)
    better = chosen_gain(candidates, greedy) > chosen_gain(candidates, guided)
    return write(plain, candidates, torch.where(better[:, None], greedy, guided))


def relax_ad3(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 2000,
    penalty: float = 0.15,
    over_relaxation: float = 1.4,
) -> Relaxation:
    """max ⟨s, y⟩ over the LP relaxation of Q, with a dual bound on the optimum.

    The tolerance is relative to a row's largest gain over the empty label. A row that has not met it after
    max_iterations is returned as it stands, with its gap.
    """
    plain, candidates = prune(scores, constraints)
    solution, mass = _relax(candidates, tolerance, max_iterations, penalty, over_relaxation)
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

    Every factor keeps its own copy of its variables and a share of their gains; λ moves the gains between the copies
    until they agree. The penalty η of a problem follows its two residuals. A problem leaves the batch once a feasible
    point reaches the dual bound, which proves the point optimal; no problem's course depends on another's.
    """
    _check_options(tolerance, max_iterations, penalty, over_relaxation)
    # In units of the largest gain one penalty suits all problems.
    scale = torch.zeros(graph.problems, dtype=graph.gain.dtype, device=graph.gain.device)
    scale = scale.scatter_reduce(0, graph.owner, graph.gain.abs(), "amax").clamp(min=torch.finfo(scale.dtype).tiny)
    unit = FactorGraph(
        graph.gain / scale[graph.owner], graph.owner, graph.members, graph.factor_owner, graph.exact, graph.problems
    )
    course = _Course(unit, penalty, over_relaxation)
    while course.graph.problems and course.steps < max_iterations:
        for _ in range(min(CHECK_EVERY, max_iterations - course.steps)):
            course.step()
        course.look(tolerance)
    return FactorSolution(course.z, course.value * scale, course.bound * scale, course.iterations)


class _Course:
    """The state of the problems still running, and the best found for every problem of the batch."""

    def __init__(self, graph: FactorGraph, penalty: float, over_relaxation: float) -> None:
        self.graph, self.over_relaxation, self.steps, self.first_penalty = graph, over_relaxation, 0, penalty
        free = graph.gain.new_zeros(graph.problems)
        self.z, self.value = torch.zeros_like(graph.gain), torch.full_like(free, -torch.inf)
        self.bound, self.iterations = torch.full_like(free, torch.inf), torch.zeros_like(free, dtype=torch.long)
        self.variable = torch.arange(len(graph.gain), device=free.device)
        self.problem = torch.arange(graph.problems, device=free.device)
        self.penalty = torch.full_like(free, penalty)
        padded = graph.members == len(graph.gain)
        degree = graph.per_variable((~padded).to(free.dtype))
        self.weight = torch.where(degree > 0, 1.0 / degree.clamp(min=1.0), 0.0)
        self.weight[-1] = 0.0
        # λ_f with the factor's share of the gains added; −inf keeps the padding out of every projection.
        self.message = (torch.cat([graph.gain, free.new_zeros(1)]) * self.weight)[graph.members]
        self.message[padded] = -torch.inf
        # A variable in no factor is settled by the sign of its gain and stays.
        self.p = ((degree[:-1] == 0) & (graph.gain > 0)).to(free.dtype)
        self.lonely = self.p.clone()
        self._index()

    def _index(self) -> None:
        self.eta = self.penalty[self.graph.factor_owner][:, None]
        self.p_padded = torch.cat([self.p, self.p.new_zeros(1)])

    def step(self) -> None:
        """One round of AD³: copies, average, multipliers."""
        graph, before = self.graph, self.p_padded[self.graph.members]
        copies = project(before + self.message / self.eta, graph.exact)
        relaxed = torch.lerp(before, copies, self.over_relaxation)
        self.p_padded = graph.per_variable(relaxed) * self.weight
        self.p_padded[:-1] += self.lonely
        after = self.p_padded[graph.members]
        self.message = self.message - self.eta * (relaxed - after)
        self.copies, self.before, self.after = copies, before, after
        self.steps += 1

    def look(self, tolerance: float) -> None:
        """Record the best points and bounds, let proven problems go, and balance the penalties of the others."""
        graph, self.p = self.graph, self.p_padded[:-1]
        u = self.message.amax(dim=1)
        self._record(self.p, u)
        # AD³ nears the optimal face fast and crawls along it; the projection onto the face's equations ends the crawl.
        self._record(*polish(graph, self.p, torch.where(graph.exact, u, u.clamp(min=0.0))))
        self.iterations[self.problem] = self.steps
        disagree = graph.per_problem((self.copies - self.after).square().sum(dim=1), graph.factor_owner)
        drift = graph.per_problem((self.after - self.before).square().sum(dim=1), graph.factor_owner)
        # Copies that disagree want a larger penalty, an average that still drifts a smaller one. Left alone the
        # ratio can drive the penalty off and freeze λ, so it stays below where it began.
        factor = torch.where(disagree > 10 * drift, 2.0, torch.where(drift > disagree, 0.25, 1.0))
        self.penalty = (self.penalty * factor).clamp(SMALLEST_PENALTY * self.first_penalty, self.first_penalty)
        running = self.bound[self.problem] - self.value[self.problem] > tolerance
        if not bool(running.all()):
            self._leave(running)
        self._index()

    def _record(self, z: Tensor, u: Tensor) -> None:
        z, value = repair(self.graph, z)
        better = value > self.value[self.problem]
        self.value[self.problem] = torch.where(better, value, self.value[self.problem])
        chosen = better[self.graph.owner]
        self.z[self.variable[chosen]] = z[chosen]
        self.bound[self.problem] = torch.minimum(self.bound[self.problem], bound(self.graph, u))

    def _leave(self, running: Tensor) -> None:
        self.graph, variables, factors = self.graph.select(running)
        self.problem, self.penalty = self.problem[running], self.penalty[running]
        self.variable, self.p, self.lonely = self.variable[variables], self.p[variables], self.lonely[variables]
        self.weight = torch.cat([self.weight[:-1][variables], self.weight[-1:]])
        self.message = self.message[factors]


def _check_options(tolerance: float, max_iterations: int, penalty: float, over_relaxation: float) -> None:
    if tolerance < 0 or max_iterations < 1 or penalty <= 0:
        raise ValueError(
            f"AD³ got tolerance {tolerance}, max_iterations {max_iterations}, penalty {penalty}; "
            "they must be ≥ 0, ≥ 1 and > 0"
        )
    if not 0 < over_relaxation < 2:
        raise ValueError(
            f"over_relaxation {over_relaxation} must lie between 0 and 2 for AD³ to converge; 1 is plain AD³"
        )


def _relax(
    candidates: Candidates, tolerance: float, max_iterations: int, penalty: float, over_relaxation: float
) -> tuple[FactorSolution, Tensor]:
    """The LP solution of every problem and its masses (P, K, 1 + U)."""
    solution = solve(
        factor_graph(candidates),
        tolerance=tolerance,
        max_iterations=max_iterations,
        penalty=penalty,
        over_relaxation=over_relaxation,
    )
    mass = torch.zeros_like(candidates.gain)
    mass[candidates.open] = solution.z
    return solution, mass


def factor_graph(candidates: Candidates) -> FactorGraph:
    """One variable per open slot; at-most-ones over the groups, the unique labels and the slots of an arc.

    The XOR of an arc has become an at-most-one: its empty label is in no other factor and gains nothing, so it is the
    slack. An arc in a group needs no factor, for the group's sum contains the arc's.
    """
    open_, groups = candidates.open, candidates.groups
    problems, arcs, slots = open_.shape
    wanted = open_.sum(dim=1)
    crowded = open_ & (open_.sum(dim=2, keepdim=True) > 1) & ~groups.any(dim=1)[..., None]
    eye = torch.eye(max(arcs, slots), dtype=torch.bool, device=open_.device)
    repeated = open_ & (wanted > 1)[:, None, :]
    rows = torch.cat(
        [
            (groups[..., None] & open_[:, None]).flatten(2),
            (eye[1:slots, None, :slots] & repeated[:, None]).flatten(2),
            (eye[:arcs, :arcs, None] & crowded[:, None]).flatten(2),
        ],
        dim=1,
    )
    owner, factor = rows.any(dim=2).nonzero(as_tuple=True)
    rows = rows[owner, factor]
    name = (open_.flatten().cumsum(0) - 1).reshape(problems, arcs * slots)
    size = rows.sum(dim=1)
    row, slot = rows.nonzero(as_tuple=True)
    place = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
    count = int(open_.sum())
    members = torch.full((len(owner), int(size.max()) if len(size) else 1), count, device=row.device)
    members[row, place] = name[owner[row], slot]
    return FactorGraph(
        gain=candidates.gain[open_],
        owner=open_.nonzero()[:, 0],
        members=members,
        factor_owner=owner,
        exact=torch.zeros(len(owner), dtype=torch.bool, device=row.device),
        problems=problems,
    )


def _lexicographic(first: Tensor, second: Tensor) -> Tensor:
    """Ranks (P, …) by `first` to six digits, ties by `second`: what the LP leaves open the gains decide."""
    shape = first.shape
    first, second = (first.flatten(1) * 1e6).round(), second.flatten(1)
    order = second.argsort(dim=1)
    order = order.gather(1, first.gather(1, order).argsort(dim=1, stable=True))
    return order.argsort(dim=1).to(torch.float64).reshape(shape)
