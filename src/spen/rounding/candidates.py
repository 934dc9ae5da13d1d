"""Pruning: the labels that can win an arc, and the rows whose argmax violates a constraint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spen.rounding.constraints import EMPTY, Constraints, count_violations


@dataclass(frozen=True)
class Candidates:
    """max Σ_kc gain_kc z_kc with gain = s_label − s_empty > 0: each row is a problem, without labels that cannot win.

    An arc keeps one slot for its best label that may repeat (slot 0) and one for each unique label (slots 1 … U).
    Nothing is lost, neither for integers nor for the LP: the empty label never violates anything, so a label without
    gain is never needed, and a label that may repeat does all that another label does, so a worse one is never needed.
    """

    gain: Tensor  # (P, K, 1 + U) float64
    label: Tensor  # (P, K, 1 + U) long
    open: Tensor  # (P, K, 1 + U) bool: slots that may still win
    arc: Tensor  # (P, K) long: the column an arc came from
    groups: Tensor  # (P, G, K) bool: maximal groups of two or more open arcs
    row: Tensor  # (P,) long: the problem's place among the B · rows rows of the batch


def prune(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
) -> tuple[Tensor, Candidates]:
    """(argmax_a s_a of every arc, the problems in which these labels clash).

    A row whose plain argmax lies in Q is solved by it, since the argmax maximises over a larger set; so only the
    other rows become problems.
    """
    score = constraints.valid_scores(scores)
    batch, rows, columns, _ = scores.shape
    row, arc = constraints.mask.flatten(0, 1).nonzero(as_tuple=True)
    best = score.argmax(dim=-1)
    plain = torch.zeros(batch * rows, columns, dtype=torch.long, device=scores.device)
    plain[row, arc] = best
    plain = plain.reshape(batch, rows, columns)

    clash = (count_violations(plain, constraints).total > 0).flatten()
    kept = clash[row] & (best != EMPTY)
    row, arc = row[kept], arc[kept]
    problems, problem = int(clash.sum()), (clash.cumsum(0) - 1)[row]
    # Arcs come sorted by row, so an arc's position is its distance from the first arc of its row.
    sizes = torch.bincount(problem, minlength=problems)
    k = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[problem]
    width = int(sizes.max()) if problems else 0

    def padded(values: Tensor) -> Tensor:  # (arcs, …) → (P, K, …)
        out = values.new_zeros(problems, width, *values.shape[1:])
        out[problem, k] = values
        return out

    gain, label, open_ = map(padded, _slots(score[kept].to(torch.float64), constraints.unique_labels))
    open_ = _close(gain, open_)
    members = padded(constraints.groups[row // rows, :, arc]) & open_.any(dim=-1)[..., None]
    groups = _maximal(members.transpose(1, 2))
    return plain, Candidates(gain, label, open_, padded(arc), groups, clash.nonzero()[:, 0])


def write(
    plain: Tensor,  # (B, rows, columns) long
    candidates: Candidates,
    choice: Tensor,  # (P, K) long: the slot an arc takes, −1 for the empty label
) -> Tensor:  # (B, rows, columns) long
    """The plain labels, with the rows of the problems overwritten by the choice."""
    labels = plain.flatten(0, 1).clone()
    labels[candidates.row] = EMPTY
    problem, k = (choice >= 0).nonzero(as_tuple=True)
    slot = choice[problem, k]
    labels[candidates.row[problem], candidates.arc[problem, k]] = candidates.label[problem, k, slot]
    return labels.reshape(plain.shape)


def _slots(
    score: Tensor,  # (arcs, labels)
    unique_labels: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor]:  # each (arcs, 1 + U)
    """The gain over the empty label of the best label that may repeat, then of every unique label."""
    gain = score - score[:, :1]
    unique = torch.tensor(unique_labels, dtype=torch.long, device=score.device)
    repeatable, label = gain.index_fill(1, unique, -torch.inf).max(dim=1)
    slot = torch.cat([repeatable[:, None], gain[:, unique]], dim=1)
    # A gain of 0 in slot 0 is that of the empty label itself.
    open_ = slot > 0
    open_[:, 1:] &= slot[:, 1:] > slot[:, :1]
    return slot, torch.cat([label[:, None], unique.expand(len(score), -1)], dim=1), open_


def _close(
    gain: Tensor,  # (P, K, 1 + U)
    open_: Tensor,  # (P, K, 1 + U)
) -> Tensor:  # (P, K, 1 + U) bool
    """A unique label that no other arc of the row wants is free of its constraint, so it beats all below it."""
    while True:
        unique = open_.clone()
        unique[..., 0] = False
        alone = unique & (unique.sum(dim=1, keepdim=True) == 1)
        floor = torch.where(alone, gain, 0.0).amax(dim=-1, keepdim=True)
        # Closing a slot may leave another arc alone with its label, hence the loop; it ends as slots only close.
        closed = open_ & (gain >= floor)
        if torch.equal(closed, open_):
            return open_
        open_ = closed


def _maximal(
    groups: Tensor,  # (P, G, K) bool
) -> Tensor:  # (P, G', K) bool
    """Drop groups of fewer than two arcs and groups inside another, which constrain nothing further."""
    # Most groups hold at most one arc by now; without them the comparison of pairs below is small.
    groups = front(groups, groups.sum(dim=-1) > 1)
    member = groups.to(torch.float32)
    size = member.sum(dim=-1)
    inside = (member @ member.transpose(1, 2)) == size[..., None]
    order = torch.arange(groups.shape[1], device=groups.device)
    larger = (size[:, None, :] > size[..., None]) | ((size[:, None, :] == size[..., None]) & (order < order[:, None]))
    return front(groups, (size > 1) & ~(inside & larger).any(dim=-1))


def front(
    groups: Tensor,  # (P, G, K) bool
    kept: Tensor,  # (P, G) bool
) -> Tensor:  # (P, G', K) bool
    """The selected groups, moved to the front of their problem and padded to the largest number of them."""
    width = int(kept.sum(dim=1).max()) if kept.numel() else 0
    first = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    chosen = groups.gather(1, first[..., None].expand(-1, -1, groups.shape[2]))
    return chosen & kept.gather(1, first)[..., None]
