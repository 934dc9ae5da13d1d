"""The only loop of the library: y_0 → y_1 → … → y_T (Eq. 10), stopping per example (Sec. 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spen.descent.potential import Potential
from spen.protocols import Convergence, Domain, State, StepRule
from spen.tensors import as_rows

GradientFunction = Callable[[Potential, Tensor], tuple[Tensor, ...]]  # (∇E, E, …) of a potential at a point


class Step(NamedTuple):
    """One step of the loop, with all that is needed to recompute it."""

    t: int
    z: Tensor
    before: State
    after: State
    active: Tensor | None  # (B,) bool; None: every example moves
    rows: Tensor | None  # the indices of the active ones
    scale: Tensor | None  # (B,): the fraction of the direction that was taken; None: all of it


@dataclass
class Iterates:
    """The results of a descent. Lists have one entry per step taken."""

    outputs: list[Tensor] = field(default_factory=list)  # y_1 … y_n
    energies: list[Tensor] = field(default_factory=list)  # E(y_0) … E(y_{n−1}); NaN where an example had stopped
    gradients: list[Tensor] = field(default_factory=list)  # g_0 … g_{n−1}, if wanted; 0 where an example had stopped
    steps_used: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # (B,)
    converged: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))  # (B,)


@dataclass(frozen=True)
class Descend:
    """The loop with its parts: call it to run the descent; ``step`` recomputes one step from a known gradient.

    ``masked`` takes all steps and freezes converged examples by a mask. The results are the same, without a
    synchronisation of device and host, which a CUDA graph cannot contain.
    """

    domain: Domain
    rule: StepRule
    stop: Convergence | None = None
    keep_gradients: bool = False
    masked: bool = False

    def __call__(
        self,
        potential: Potential,
        start: Tensor,
        gradient: GradientFunction = Potential.gradient,
        watch: Callable[[Step], None] | None = None,
    ) -> Iterates:
        """Descend from ``start``. ``gradient`` computes ∇E; ``watch`` is called with every step."""
        batch = start.shape[0]
        path = Iterates(
            steps_used=torch.full((batch,), self.rule.steps, device=start.device),
            converged=torch.zeros(batch, dtype=torch.bool, device=start.device),
        )
        z = self.domain.enter(start)
        y = self.domain.output(z)
        state = self.rule.begin(z)
        active, rows, moving = None, None, potential
        for t in range(self.rule.steps):
            now = moving.at(self.rule.energy_step(t))
            g, energies = _evaluate(gradient, now, self.point(z, y), rows)
            if self.masked and active is not None:
                g = torch.where(as_rows(active, g), g, 0.0)
                energies = torch.where(active, energies, torch.nan)
            before, here = state, z
            scale = None if self.rule.backtracks is None else self._scale(now, t, z, state, g, energies, rows)
            z, state = self.step(t, z, state, g, active, scale)
            if watch is not None:
                watch(Step(t, here, before, state, active, rows, scale))
            previous, y = y, self.domain.output(z)
            path.outputs.append(y)
            path.energies.append(energies)
            if self.keep_gradients:
                path.gradients.append(g)
            if self.stop is None:
                continue
            newly = self.stop.converged(previous.detach(), y.detach()) & ~path.converged
            if scale is not None:
                newly = newly & (scale > 0)  # an example whose step was rejected has not converged
            path.steps_used = path.steps_used.masked_fill(newly, t + 1)
            path.converged = path.converged | newly
            if self.masked:
                active = ~path.converged
            elif bool(newly.any()):
                if bool(path.converged.all()):
                    break
                active = ~path.converged
                rows = active.nonzero().squeeze(1)
                moving = potential.rows(rows)
        return path

    def point(self, z: Tensor, y: Tensor) -> Tensor:
        """Where the gradient is taken: at z through the output map, or at y itself."""
        return z if self.domain.through else y

    @torch.no_grad()
    def first_point(self, start: Tensor) -> Tensor:
        """Where the first gradient is taken, cut off from the graph of ``start``."""
        z = self.domain.enter(start.detach())
        return self.point(z, self.domain.output(z))

    def step(
        self,
        t: int,
        z: Tensor,
        state: State,
        gradient: Tensor,
        active: Tensor | None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Rule, domain, and the freezing of converged examples: cheap, and differentiated by autograd."""
        direction, state = self.rule.update(t, z, gradient, state)
        if scale is not None:
            direction = direction * as_rows(scale, direction)
        moved = self.domain.step(z, direction)
        if active is not None:
            moved = torch.where(as_rows(active, z), moved, z)
        return moved, state

    @torch.no_grad()
    def _scale(
        self, potential: Potential, t: int, z: Tensor, state: State, g: Tensor, before: Tensor, rows: Tensor | None
    ) -> Tensor:
        """(B,): the largest of 1, ½, ¼ …, or 0, of the direction that does not raise the energy of each example."""
        if rows is not None:  # NaN where an example is frozen, and nothing is ≤ NaN
            before = torch.full_like(before, torch.inf).index_copy(0, rows, before.index_select(0, rows))
        scale = z.new_ones(z.shape[0])
        with torch.random.fork_rng([z.device] if z.is_cuda else []):  # the step itself draws the same numbers
            direction, _ = self.rule.update(t, z, g, state)
            for tries in range(self.rule.backtracks or 0, -1, -1):
                moved = self.domain.step(z, direction * as_rows(scale, direction))
                point = self.point(moved, self.domain.output(moved))
                higher = ~(_energies(potential, point, rows) <= before)  # NaN is higher
                scale = torch.where(higher, scale / 2 if tries else 0.0, scale)
                if not bool(higher.any()):
                    break
        return scale


def _energies(potential: Potential, point: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None:
        return potential.value(point)
    part = potential.value(point.index_select(0, rows))
    return part.new_full((point.shape[0],), -torch.inf).index_copy(0, rows, part)


def _evaluate(
    gradient: GradientFunction, potential: Potential, point: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    if rows is None:
        g, energies, *_ = gradient(potential, point)
        return g, energies
    part, energies, *_ = gradient(potential, point.index_select(0, rows))
    full = torch.zeros_like(point).index_copy(0, rows, part.to(point.dtype))
    values = energies.new_full((point.shape[0],), torch.nan).index_copy(0, rows, energies)
    return full, values
