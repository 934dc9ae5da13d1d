"""Roundings without a solver: argmax and threshold for each output on its own, and the greedy heuristics (+ H)."""

from __future__ import annotations

import torch
from torch import Tensor

from spen.rounding.candidates import Candidates, prune, write
from spen.rounding.constraints import EMPTY, Constraints


def round_argmax(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
) -> Tensor:  # (B, rows, columns) long
    """ŷ_ij = argmax_a s_ija on valid arcs, the empty label elsewhere; groups and unique labels are not looked at.

    A tie goes to the label with the smaller number, so to the empty label first.
    """
    constraints.valid_scores(scores)
    return torch.where(constraints.mask, scores.argmax(dim=-1), EMPTY)


def round_threshold(
    y: Tensor,  # any shape, in [0, 1]
    *,
    threshold: float = 0.5,
) -> Tensor:  # the same shape, bool
    """ŷ_i = [y_i > θ]: the corner of the box nearest to y when θ = ½."""
    if not bool(torch.isfinite(y).all()):
        raise ValueError("y holds nan or infinity; a threshold needs finite numbers")
    return y > threshold


def round_greedy(
    scores: Tensor,  # (B, rows, columns, labels)
    constraints: Constraints,
) -> Tensor:  # (B, rows, columns) long
    """Until no gain is left: (k, a) = argmax of s_ka − s_k0 over what violates nothing; ŷ_k = a.

    An arc whose best label is taken falls back to its next best, and to the empty label when every label with a gain
    would clash. Rows whose argmax violates nothing keep it.
    """
    plain, candidates = prune(scores, constraints)
    return write(plain, candidates, resolve(candidates, candidates.gain))


def resolve(
    candidates: Candidates,
    priority: Tensor,  # (P, K, 1 + U): slots with a larger one choose first
) -> Tensor:  # (P, K) long, −1 for the empty label
    """The greedy choice under any order of the slots; whatever the order, the choice lies in Q."""
    problems, arcs, slots = priority.shape
    choice = torch.full((problems, arcs), -1, dtype=torch.long, device=priority.device)
    if not priority.numel():
        return choice
    member = candidates.groups.to(torch.float32)
    blocks = (member.transpose(1, 2) @ member > 0) | torch.eye(arcs, dtype=torch.bool, device=priority.device)
    rank = torch.where(candidates.open, priority, -torch.inf).flatten(1)
    slot_of = torch.arange(arcs * slots, device=priority.device) % slots
    every = torch.arange(problems, device=priority.device)
    # Each round settles one arc of every problem, so there are no more rounds than arcs.
    for _ in range(arcs):
        index = rank.argmax(dim=1)
        live = rank[every, index] > -torch.inf
        if not bool(live.any()):
            break
        k, slot = index // slots, index % slots
        choice[every[live], k[live]] = slot[live]
        struck = blocks[every, k].repeat_interleave(slots, dim=1)
        # Slot 0 may repeat; the others hold one unique label each, the same for every arc.
        struck |= (slot_of == slot[:, None]) & (slot > 0)[:, None]
        rank = rank.masked_fill(struck, -torch.inf)
    return choice


def chosen_gain(
    candidates: Candidates,
    choice: Tensor,  # (P, K) long
) -> Tensor:  # (P,) float64
    """Σ_k gain_k,choice(k): what a choice is worth above all arcs empty."""
    gain = candidates.gain.gather(2, choice.clamp(min=0)[..., None])[..., 0]
    return torch.where(choice >= 0, gain, 0.0).sum(dim=1)
