"""argmin_y E(y; F(x)) with more computation than the model was trained with: longer descents, and restarts.

restart r    y^r = the descent from Init(F(x)) for r = 0, from a perturbed or random start for r ≥ 1
answer       y^r of the lowest E(y^r), for each example by itself
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from spen.arguments import require_function
from spen.gradients.replay import Checkpointed
from spen.minimizer import Minimizer
from spen.protocols import Convergence
from spen.rules import Extended
from spen.tensors import select as select_rows

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["Found", "search"]

Check = Callable[[Tensor, Any], Tensor]  # (y, x) -> (B,) bool: which answers are right
Score = Callable[[Tensor, Any], Tensor]  # (y, x) -> (B,): the lowest is kept


@dataclass(frozen=True)
class Found:
    """The best answer of R descents for each of B examples, and what was tried for it."""

    output: Tensor
    """(B, …): the answers."""
    selected: Tensor
    """(B,): which restart each answer came from; 0 is the descent from Init itself."""
    energies: Tensor
    """(R, B): the energy that each restart ended with; NaN where none was needed."""
    steps_used: Tensor
    """(R, B): the steps that each restart took; 0 where none was needed."""
    solved: Tensor | None
    """(B,) bool: which answers pass the check; None without one."""

    @property
    def energy(self) -> Tensor:
        """(B,): the energy of each answer."""
        return self.energies.gather(0, self.selected[None])[0]

    def __repr__(self) -> str:
        solved = "" if self.solved is None else f", solved={int(self.solved.sum())} of {len(self.solved)}"
        return f"Found(output={tuple(self.output.shape)}, restarts={len(self.energies)}{solved})"


@torch.no_grad()
def search(
    model: SPEN,
    x: Any,
    *,
    steps: int | None = None,
    restarts: int = 1,
    noise: float = 1.0,
    start: Literal["perturbed", "random"] = "perturbed",
    select: Literal["energy"] | Score = "energy",
    solved: Check | None = None,
    stop: Convergence | None = None,
    backtracks: int | None = None,
    rows: int | None = None,
    generator: torch.Generator | None = None,
) -> Found:
    """Descend ``restarts`` times and keep the answer of the lowest energy for each example.

    ``steps`` may go past the trained T: the last step is repeated with its rate. The first descent begins at
    Init(F(x)), the others at Init(F(x)) + ``noise``·N(0, 1) or, with ``start="random"``, at ``noise``·N(0, 1), in
    whatever Init returns (logits, over a simplex). ``select`` may be a function (y, x) -> (B,) whose lowest value is
    kept instead of the energy. ``solved``, a function (y, x) -> (B,) of truth values, ends the descents and restarts of
    an example; an answer that passes it is preferred to any that does not. ``stop`` and ``backtracks`` replace those of
    the minimiser. At most ``rows`` descents run at once (None: as many as there are examples); the answers do
    not depend on it. Random numbers come from ``generator``, which must be one of the CPU, or from torch's own.
    """
    _check(model, restarts, noise, start, select, solved, rows)
    features = model.features(x)
    begin = model._start(features)
    if torch.is_autocast_enabled(begin.device.type) and begin.dtype.itemsize < 4:
        begin = begin.float()  # as the minimiser does
    batch = begin.shape[0]
    domain = model.minimizer.domain
    tried = _Tried(begin, domain.output(domain.enter(begin)).clone(), restarts, solved is not None)
    open_rows, r = torch.arange(batch, device=begin.device), 0
    while r < restarts and len(open_rows):
        # The first alone: where a check passes, there are no others.
        count = 1 if r == 0 else min(restarts - r, max(1, (rows or batch) // len(open_rows)))
        starts = torch.cat([_start(begin, i, noise, start, generator)[open_rows] for i in range(r, r + count)])
        owners = open_rows.repeat(count)
        numbers = torch.arange(r, r + count, device=begin.device).repeat_interleave(len(open_rows))
        size = rows or batch
        for first in range(0, len(owners), size):
            at, which = owners[first : first + size], numbers[first : first + size]
            inputs = select_rows(x, at)
            minimizer = _minimizer(model.minimizer, steps, stop, solved, inputs, backtracks)
            path = minimizer(model.energy, select_rows(features, at), starts[first : first + size])
            scores = path.energies[-1] if isinstance(select, str) else select(path.output, inputs)
            right = None if solved is None else solved(path.output, inputs)
            tried.note(which, at, path.output, path.energies[-1], path.steps_used, scores, right)
        r += count
        if solved is not None:
            open_rows = (~tried.solved).nonzero().squeeze(1)
    return tried.found()


class _Tried:
    """What has been tried so far, and the best of it."""

    def __init__(self, begin: Tensor, output: Tensor, restarts: int, checked: bool) -> None:
        batch, device = begin.shape[0], begin.device
        self.checked = checked
        self.output = output
        self.energies = begin.new_full((restarts, batch), torch.nan)
        self.scores = begin.new_full((batch,), torch.inf)
        self.steps_used = torch.zeros(restarts, batch, dtype=torch.long, device=device)
        self.selected = torch.zeros(batch, dtype=torch.long, device=device)
        self.solved = torch.zeros(batch, dtype=torch.bool, device=device)

    def note(
        self,
        which: Tensor,
        at: Tensor,
        y: Tensor,
        energies: Tensor,
        steps: Tensor,
        scores: Tensor,
        right: Tensor | None,
    ) -> None:
        """Descents number ``which`` of the examples ``at``. One example may come several times, in order."""
        self.energies[which, at], self.steps_used[which, at] = energies.to(self.energies.dtype), steps
        right = torch.zeros_like(at, dtype=torch.bool) if right is None else right
        scores = scores.to(self.scores.dtype).nan_to_num(nan=torch.inf)
        for r in which.unique().tolist():
            own = which == r
            rows, new = at[own], right[own]
            # The first that is solved stays: whether there are others depends on how many run at once.
            better = ~self.solved[rows] & (new | (scores[own] < self.scores[rows]))
            if r == 0:
                better = torch.ones_like(better)
            kept = rows[better]
            self.output[kept], self.scores[kept] = y[own][better], scores[own][better]
            self.selected[kept], self.solved[kept] = r, new[better]

    def found(self) -> Found:
        return Found(self.output, self.selected, self.energies, self.steps_used, self.solved if self.checked else None)


def _start(begin: Tensor, r: int, noise: float, kind: str, generator: torch.Generator | None) -> Tensor:
    """Where restart r begins, for all examples: what one of them gets does not depend on which others are left."""
    if r == 0:
        return begin
    drawn = noise * torch.randn(begin.shape, generator=generator, dtype=begin.dtype).to(begin.device)
    return begin + drawn if kind == "perturbed" else drawn


class _Solved:
    """An example has arrived if the check passes, or where another rule says so."""

    def __init__(self, check: Check, x: Any, other: Convergence | None) -> None:
        self.check, self.x, self.other = check, x, other

    def converged(self, before: Tensor, after: Tensor) -> Tensor:
        right = self.check(after, self.x)
        return right if self.other is None else right | self.other.converged(before, after)


def _minimizer(
    own: Minimizer, steps: int | None, stop: Convergence | None, solved: Check | None, x: Any, backtracks: int | None
) -> Minimizer:
    stop = own.stop if stop is None else stop
    stop = stop if solved is None else _Solved(solved, x, stop)
    rule = (
        own._rule(steps) if backtracks is None else Extended(own.rule, steps or own.rule.steps, backtracks=backtracks)
    )
    # A check belongs to its batch: programs and CUDA graphs, which hold what they were made from, would be made anew.
    gradient = own.gradient if solved is None else Checkpointed()
    return Minimizer(own.domain, rule, gradient, stop)


def _check(model: SPEN, restarts: int, noise: float, start: str, select: Any, solved: Any, rows: int | None) -> None:
    if not isinstance(model.minimizer, Minimizer):
        kind = type(model.minimizer).__name__
        raise ValueError(f"search restarts a descent, and {kind} finds its answer from any start: use a Minimizer")
    if restarts < 1 or not noise >= 0 or (rows is not None and rows < 1):
        raise ValueError(f"search needs restarts ≥ 1, noise ≥ 0 and rows ≥ 1, not {restarts}, {noise} and {rows}")
    if start not in ("perturbed", "random"):
        raise ValueError(f'start is "perturbed" or "random", not {start!r}')
    if select != "energy":
        require_function(select, "select", "select(y, x), or the word energy")
    if solved is not None:
        require_function(solved, "solved", "solved(y, x)")
