"""The constrained problem and its LP relaxation by HiGHS, one example after another: the exact reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spen.rounding.constraints import EMPTY, Constraints, Relaxation


def round_ilp(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
    *,
    time_limit: float | None = None,  # seconds per example
) -> Tensor:  # (B, rows, columns) long
    """argmax_{y ∈ Q} ⟨s, y⟩, exactly, by branch and bound."""
    return _solve(scores, constraints, integer=True, time_limit=time_limit).argmax(dim=-1)


def relax_lp(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
) -> Relaxation:
    """max ⟨s, y⟩ over the LP relaxation of Q, y ∈ [0, 1], by the simplex method of HiGHS."""
    y = _solve(scores, constraints, integer=False)
    value = (y * scores.detach().to(torch.float64)).masked_fill(~constraints.mask[..., None], 0.0).sum(dim=(2, 3))
    return Relaxation(y=y, value=value, bound=value, iterations=torch.zeros_like(value, dtype=torch.long))


def _solve(
    scores: Tensor, constraints: Constraints, *, integer: bool, time_limit: float | None = None
) -> Tensor:  # (B, rows, columns, labels) float64
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints.valid_scores(scores)
    every, masks = scores.detach().to(torch.float64).cpu().numpy(), constraints.mask.cpu().numpy()
    solutions = np.zeros(every.shape)
    solutions[..., EMPTY] = 1.0
    # The default gap of HiGHS, 1e-4, would stop before the optimum.
    options: dict[str, Any] = {"mip_rel_gap": 0.0}
    if time_limit is not None:
        options["time_limit"] = time_limit
    for example, (s, mask, y) in enumerate(zip(every, masks, solutions, strict=True)):
        if not mask.any():
            continue
        groups, labels = constraints.groups[example].cpu().numpy(), s.shape[-1]
        matrix, lower = _matrix(mask, groups, constraints.unique_labels, labels)
        solution = milp(
            -s[mask].ravel(),
            integrality=np.full(matrix.shape[1], int(integer)),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, lower, np.ones(len(lower))),
            options=options,
        )
        if solution.x is None:
            raise RuntimeError(f"HiGHS found no labelling of example {example}: {solution.message}; raise time_limit")
        y[mask] = np.clip(solution.x.reshape(-1, labels), 0.0, 1.0)
    return torch.from_numpy(solutions).to(scores.device)


def _matrix(
    mask: np.ndarray, groups: np.ndarray, unique_labels: tuple[int, ...], labels: int
) -> tuple[Any, np.ndarray]:
    """Rows of lower ≤ M y ≤ 1: one XOR per arc, then the at-most-ones that two arcs or more take part in."""
    from scipy.sparse import csr_array

    row, column = mask.nonzero()
    arc = np.arange(len(row))
    entries: list[np.ndarray] = []
    lower: list[float] = []

    def add(arcs: np.ndarray, chosen: np.ndarray, least: float) -> None:
        columns = (arcs[:, None] * labels + chosen).ravel()
        entries.append(np.stack([np.full(len(columns), len(lower)), columns]))
        lower.append(least)

    every, filled = np.arange(labels), np.arange(1, labels)
    for k in arc:
        add(arc[k : k + 1], every, 1.0)
    for i in np.unique(row):
        here = arc[row == i]
        inside = np.unique(groups[:, column[here]], axis=0)
        for members in inside[inside.sum(axis=1) > 1]:
            add(here[members], filled, 0.0)
        if len(here) > 1:
            for label in unique_labels:
                add(here, np.array([label]), 0.0)
    index = np.concatenate(entries, axis=1)
    matrix = csr_array((np.ones(index.shape[1]), (index[0], index[1])), shape=(len(lower), len(arc) * labels))
    return matrix, np.array(lower)
