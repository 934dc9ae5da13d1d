"""argmin_y E(y; F(x)) with more computation than in training: longer descents, and restarts.

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
from spen.descent.trajectory import Trajectory
from spen.gradients.replay import Checkpointed
from spen.minimizer import Minimizer
from spen.protocols import Convergence
from spen.rules import Extended
from spen.tensors import select as select_rows
from spen.tensors import tensors_of

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["Found", "search"]

Check = Callable[[Tensor, Any], Tensor]  # (y, x) -> (B,) bool: which answers are right
Score = Callable[[Tensor, Any], Tensor]  # (y, x) -> (B,): the lowest is selected


@dataclass(frozen=True)
class Found:
    """The best answer of R descents for each of B examples, and the energies and steps of all of them."""

    output: Tensor
    """(B, …): the answers."""
    selected: Tensor
    """(B,): which restart each answer came from; 0 is the descent from Init itself."""
    start: Tensor
    """(B, …): where that descent began; ``model(x, start=found.start)`` repeats it."""
    energies: Tensor
    """(R, B): the energy that each restart ended with; NaN for restarts that were not needed."""
    steps_used: Tensor
    """(R, B): the steps that each restart took; 0 for restarts that were not needed."""
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
    """Descend ``restarts`` times and return the answer of the lowest energy for each example.

    ``steps`` may exceed the trained T: the last step is repeated with its rate. The first descent begins at
    Init(F(x)), the others at Init(F(x)) + ``noise``·N(0, 1) or, with ``start="random"``, at ``noise``·N(0, 1), in
    whatever Init returns (logits, over a simplex). ``select`` may be a function (y, x) -> (B,), which is minimised
    instead of the energy. ``solved``, a function (y, x) -> (B,) of truth values, ends the descents and restarts of
    an example; an answer that passes it is preferred to any that does not. ``stop`` and ``backtracks`` replace those of
    the minimiser. At most ``rows`` descents run at once (None: the batch size); the answers do not depend on it. Random
    numbers come from ``generator``, which must be on the CPU, or from torch's default generator.
    """
    _check(model, restarts, noise, start, select, solved, rows)
    features = model.features(x)
    begin = model._start(features)
    if torch.is_autocast_enabled(begin.device.type) and begin.dtype.itemsize < 4:
        begin = begin.float()  # as the minimiser does
    batch = begin.shape[0]
    size = rows or batch
    reads_x = solved is not None or not isinstance(select, str)
    if reads_x and any(leaf.shape[:1] != (batch,) for leaf in tensors_of(x)):
        raise ValueError(
            f"solved and select get the examples of x that are left, so every tensor of x needs {batch} rows, one per "
            "example"
        )
    domain = model.minimizer.domain
    best = _Best(domain.output(domain.enter(begin)).clone(), begin.clone(), restarts)
    unsolved, r = torch.arange(batch, device=begin.device), 0
    while r < restarts and len(unsolved):
        # The first restart runs alone: examples that it solves need no others.
        count = 1 if r == 0 else min(restarts - r, max(1, size // len(unsolved)))
        starts = torch.cat([_start(begin, i, noise, start, generator)[unsolved] for i in range(r, r + count)])
        examples = unsolved.repeat(count)
        numbers = torch.arange(r, r + count, device=begin.device).repeat_interleave(len(unsolved))
        for first in range(0, len(examples), size):
            chunk = slice(first, first + size)
            inputs = select_rows(x, examples[chunk]) if reads_x else None
            minimizer = _minimizer(model.minimizer, steps, stop, solved, inputs, backtracks)
            path = minimizer(model.energy, select_rows(features, examples[chunk]), starts[chunk])
            scores = path.energies[-1]
            if not isinstance(select, str):
                scores = _one_per_row("select", select(path.output, inputs), path.output)
            right = torch.zeros_like(scores, dtype=torch.bool)
            if solved is not None:
                right = _one_per_row("solved", solved(path.output, inputs), path.output).bool()
            best.update(numbers[chunk], examples[chunk], starts[chunk], path, scores, right)
        r += count
        if solved is not None:
            unsolved = (~best.solved).nonzero().squeeze(1)
    passed = None if solved is None else best.solved
    return Found(best.output, best.selected, best.start, best.energies, best.steps_used, passed)


class _Best:
    """The best answer so far for each example, and the energies and steps of all restarts."""

    def __init__(self, output: Tensor, start: Tensor, restarts: int) -> None:
        batch, device = output.shape[0], output.device
        self.output, self.start = output, start
        self.energies = output.new_full((restarts, batch), torch.nan)
        self.scores = output.new_full((batch,), torch.inf)
        self.steps_used = torch.zeros(restarts, batch, dtype=torch.long, device=device)
        self.selected = torch.zeros(batch, dtype=torch.long, device=device)
        self.solved = torch.zeros(batch, dtype=torch.bool, device=device)

    def update(
        self, numbers: Tensor, examples: Tensor, starts: Tensor, path: Trajectory, scores: Tensor, right: Tensor
    ) -> None:
        """Add one descent per row: the number of the restart, the example, and the results. Restarts come in order."""
        self.energies[numbers, examples] = path.energies[-1].to(self.energies.dtype)
        self.steps_used[numbers, examples] = path.steps_used
        scores = scores.to(self.scores.dtype).nan_to_num(nan=torch.inf)
        for r in numbers.unique().tolist():
            own = numbers == r
            rows = examples[own]
            # The first solution stays: whether there are later ones depends on how many restarts run at once.
            better = ~self.solved[rows] & (right[own] | (scores[own] < self.scores[rows]))
            better = better | (r == 0)
            at = rows[better]
            self.output[at], self.scores[at] = path.output[own][better], scores[own][better]
            self.start[at] = starts[own][better]
            self.selected[at], self.solved[at] = r, right[own][better]


def _start(begin: Tensor, r: int, noise: float, kind: str, generator: torch.Generator | None) -> Tensor:
    """Where restart r begins, drawn for all examples, so that it does not depend on which of them are unsolved."""
    if r == 0:
        return begin
    drawn = noise * torch.randn(begin.shape, generator=generator, dtype=begin.dtype).to(begin.device)
    return begin + drawn if kind == "perturbed" else drawn


def _one_per_row(name: str, value: Any, y: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (y.shape[0],):
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name}(y, x) must return a tensor of shape ({y.shape[0]},), one per example, not {found}")
    return value


class _Solved:
    """An example has converged if the check passes, or by another test."""

    def __init__(self, check: Check, x: Any, other: Convergence | None) -> None:
        self.check, self.x, self.other = check, x, other

    def converged(self, before: Tensor, after: Tensor) -> Tensor:
        right = _one_per_row("solved", self.check(after, self.x), after).bool()
        return right if self.other is None else right | self.other.converged(before, after)


def _minimizer(
    own: Minimizer, steps: int | None, stop: Convergence | None, solved: Check | None, x: Any, backtracks: int | None
) -> Minimizer:
    stop = own.stop if stop is None else stop
    stop = stop if solved is None else _Solved(solved, x, stop)
    rule = (
        own._rule(steps) if backtracks is None else Extended(own.rule, steps or own.rule.steps, backtracks=backtracks)
    )
    # The check holds the inputs of one batch: programs and CUDA graphs would be compiled again for each.
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
        require_function(select, "select", 'select(y, x) or the string "energy"')
    if solved is not None:
        require_function(solved, "solved", "solved(y, x)")
