"""Answers of earlier batches as starts of later descents: training meets states that are more than T steps from Init.

Examples (x, y*) are stored with the answer y_T that their latest descent ended with. A descent that starts there goes
on where the other stopped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spen.domains import Box
from spen.objectives.coordinates import Coordinates
from spen.protocols import Domain
from spen.tensors import as_rows, flatten, unflatten

__all__ = ["Replay", "start_at"]

_MARGIN = 1e-6
"""How far a start keeps from the corners of a domain, which have no logits."""


def start_at(domain: Domain, y: Tensor) -> Tensor:
    """What Init would have to return for a descent to start at y."""
    if isinstance(domain, Box) and domain.update == "projected":
        return y
    return Coordinates(domain).enter(y, _MARGIN)


class Replay:
    """The last ``size`` examples with the starts that continue their descents."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: list[Tensor] = []  # of x, of y* and of the starts, one row for each example

    def mix(self, x: Any, target: Any, share: float) -> tuple[Any, Any, Tensor | None]:
        """The batch with each example replaced by a stored one with probability ``share``.

        Also the starts, with rows of NaN for examples that start at Init; None while nothing is stored.
        """
        if not self.rows:
            return x, target, None
        leaves, structure = flatten((x, target))
        fresh = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._check_shapes(fresh)
        stored = [rows.to(fresh[0].device) for rows in self.rows]
        count = len(fresh[0])
        replaced = (torch.rand(count) < share).to(fresh[0].device)
        chosen = torch.randint(len(stored[0]), (count,)).to(fresh[0].device)
        mixed = iter([torch.where(as_rows(replaced, a), b[chosen], a) for a, b in zip(fresh, stored, strict=False)])
        x, target = unflatten([next(mixed) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
        starts = stored[-1][chosen]
        return x, target, torch.where(as_rows(replaced, starts), starts, torch.nan)

    def add(self, x: Any, target: Any, starts: Tensor) -> None:
        """Store a batch; the oldest examples are dropped."""
        new = [leaf.detach() for leaf in (*flatten((x, target))[0], starts) if isinstance(leaf, Tensor)]
        if self.rows:
            new = [torch.cat([old.to(rows.device), rows]) for old, rows in zip(self.rows, new, strict=True)]
        self.rows = [rows[-self.size :].clone() for rows in new]

    def _check_shapes(self, batch: list[Tensor]) -> None:
        known, given = ([tuple(rows.shape[1:]) for rows in part] for part in (self.rows[:-1], batch))
        if known != given:
            raise ValueError(
                f"replay mixes the examples of several batches, and these have shapes {given} after {known}: pad them "
                "to one shape, or leave replay out"
            )
