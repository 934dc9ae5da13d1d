"""Random constrained labellings, from easy to degenerate, and brute force for the small ones."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spen.rounding import Constraints, count_violations

FLAVOURS = ("normal", "integers", "all tied", "few values", "scales", "nearly tied", "negative")
STRUCTURES = ("pairs", "cliques", "spans")


def random_problem(
    seed: int,
    *,
    structure: str = "spans",
    flavour: str = "normal",
    batch: int = 8,
    rows: int = 2,
    columns: int = 8,
    labels: int = 6,
    unique: tuple[int, ...] = (1, 2, 3),
) -> tuple[Tensor, Constraints]:
    """Scores in double precision and constraints that a plain argmax mostly violates."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, rows, columns, generator=generator) < 0.8
    scores = torch.randn(batch, rows, columns, labels, generator=generator, dtype=torch.float64)
    if flavour == "integers":
        scores = scores.round()
    elif flavour == "all tied":
        scores = torch.ones_like(scores)
        scores[..., 0] = 0.0
    elif flavour == "few values":
        scores = (2 * scores).round() / 2
        scores[..., 1:4] = scores[..., 1:2]
    elif flavour == "scales":
        scores = scores * 10 ** (6 * torch.rand(batch, 1, 1, 1, generator=generator, dtype=torch.float64) - 3)
    elif flavour == "nearly tied":
        scores[..., 1:4] = scores[:, :, :1, 1:4] + 1e-4 * scores[..., 1:4]
    elif flavour == "negative":
        scores[..., 0] += 10.0
    if structure == "spans":
        starts = torch.randint(0, 2 * columns, (batch, columns), generator=generator)
        ends = starts + torch.randint(0, columns // 2 + 1, (batch, columns), generator=generator)
        return scores, Constraints.from_spans(mask, starts, ends, unique)
    if structure == "cliques":
        return scores, Constraints(mask, torch.rand(batch, columns, columns, generator=generator) < 0.4, unique)
    conflicts = torch.rand(batch, columns, columns, generator=generator) < 0.25
    conflicts |= conflicts.transpose(1, 2).clone()
    # Bare pairs make the weakest relaxation: odd cycles of conflicts have ½ everywhere for an optimum.
    first, second = torch.triu_indices(columns, columns, offset=1)
    groups = torch.zeros(batch, len(first), columns, dtype=torch.bool)
    pair = torch.arange(len(first))
    groups[:, pair, first] = groups[:, pair, second] = conflicts[:, first, second]
    return scores, Constraints(mask, groups, unique)


def value_of(scores: Tensor, labels: Tensor, constraints: Constraints) -> Tensor:  # (B, rows)
    """⟨s, y⟩ over the valid arcs."""
    chosen = scores.to(torch.float64).gather(3, labels[..., None])[..., 0]
    return chosen.masked_fill(~constraints.mask, 0.0).sum(-1)


def brute_force(scores: Tensor, constraints: Constraints) -> Tensor:  # (B, rows)
    """max ⟨s, y⟩ over every labelling that violates nothing."""
    batch, rows, columns, labels = scores.shape
    best = torch.full((batch, rows), -torch.inf, dtype=torch.float64)
    for combination in itertools.product(range(labels), repeat=columns):
        y = torch.tensor(combination).expand(batch, rows, columns)
        feasible = count_violations(y, constraints).total == 0
        best = torch.maximum(best, value_of(scores, y, constraints).masked_fill(~feasible, -torch.inf))
    return best


def triangle(*, unique: tuple[int, ...] = ()) -> tuple[Tensor, Constraints]:
    """Three columns in pairwise conflict, gains 1: the LP of the pairs is worth 3/2, the integers 1."""
    scores = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    scores[..., 1] = 1.0
    pairs = torch.tensor([[[True, True, False], [False, True, True], [True, False, True]]])
    return scores, Constraints(torch.ones(1, 1, 3, dtype=torch.bool), pairs, unique)
