"""From soft outputs to roles that keep the constraints: greedy (+ H), AD³, ILP, or the plain argmax.

Predicates share no constraint, so a batch of sentences is decoded as a batch of predicates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from spen.rounding import Constraints, count_violations, round_ad3, round_argmax, round_greedy, round_ilp
from spen.tasks.srl.arcs import ArcTarget

Decoder = Literal["argmax", "greedy", "ad3", "ilp"]
DECODERS: tuple[Decoder, ...] = ("argmax", "greedy", "ad3", "ilp")


def constraints(target: ArcTarget, core: tuple[int, ...]) -> Constraints:
    """No two overlapping arguments and no core role twice, with every predicate (B · n) as an example of its own."""
    mask = target.mask.flatten(0, 1)[:, None]
    start, end = target.spans.flatten(0, 1).unbind(-1)
    # Spans are half-open here; padding [0, 0) becomes [0, 0], which the mask keeps out of everything.
    return Constraints.from_spans(mask, start, torch.maximum(end - 1, start), core)


def decode_roles(
    y: Tensor,  # (B, n, K, A) probabilities
    target: ArcTarget,
    core: tuple[int, ...],
    decoder: Decoder = "ad3",
    *,
    max_iterations: int = 2000,
) -> Tensor:  # (B, n, K) role indices
    """argmax over the feasible assignments of Σ log y; `max_iterations` bounds AD³ alone."""
    log = y.detach().float().clamp_min(1e-30).log().flatten(0, 1)[:, None]
    rules = constraints(target, core)
    rounders: dict[str, Callable[[], Tensor]] = {
        "argmax": lambda: round_argmax(log, rules),
        "greedy": lambda: round_greedy(log, rules),
        "ad3": lambda: round_ad3(log, rules, max_iterations=max_iterations),
        "ilp": lambda: round_ilp(log, rules),
    }
    if decoder not in rounders:
        raise ValueError(f"no decoder is called {decoder!r}; choose from {', '.join(DECODERS)}")
    return rounders[decoder]().reshape(target.mask.shape)


def violations(y: Tensor, target: ArcTarget, core: tuple[int, ...]) -> Tensor:  # (B, n, K, A) → ()
    """How many overlaps and repeats the plain argmax has."""
    return count_violations(y.detach().flatten(0, 1)[:, None], constraints(target, core)).total.sum()
