"""The backward pass of a replayed descent: its steps taken again from the stored iterates, the last one first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from spen.descent.potential import Potential, ScoreFunction
from spen.gradients.second_order import Products, plus, vjp
from spen.gradients.snapshots import drawing_from, untouched
from spen.tensors import flat

if TYPE_CHECKING:
    from spen.gradients.replay import Tape


def pull_back(tape: Tape, saved: list[Tensor], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The cotangents of start, features, parameters, and parameters of rule and domain; ``saved`` is used up."""
    descend, taken = tape.descend, len(tape.steps)
    from_losses, from_gradients = cotangents[:taken], cotangents[taken:]
    targets: list[Tensor] = [*tape.potential.feature_tensors(), *tape.potential.parameters()]
    features = len(tape.potential.feature_tensors())
    totals: list[Tensor | None] = [None] * (len(targets) + len(tape.learned))

    z_bar: Tensor | None = None
    y_bar: Tensor | None = None
    state_bar: list[Tensor | None] = []
    compared = False
    for k in reversed(range(taken)):
        step = tape.steps[k]
        active, rows = step.active, step.rows
        if tape.detached:  # an example that no longer moved in the step after this one ends with this one
            at_rest = tape.steps[k + 1].active if k + 1 < taken else None
            z_bar, y_bar = _at_rest(z_bar, at_rest), _at_rest(y_bar, at_rest)
            state_bar = [_at_rest(bar, at_rest) for bar in state_bar]
        y_bar = plus(y_bar, from_losses[k])
        moving = active
        if tape.last is not None:
            counts = tape.path.steps_used - tape.last <= step.t
            if not bool(counts.any()):
                return (None, *totals)
            z_bar, y_bar = _masked(z_bar, counts), _masked(y_bar, counts)
            state_bar = [_masked(bar, counts) for bar in state_bar]
            moving = counts if active is None else active & counts
        with torch.enable_grad():
            z = saved[step.z].detach().requires_grad_()
            state = tuple(saved[i].detach().requires_grad_() for i in step.before)
            g = descend.rule.recall(state, tuple(saved[i].detach() for i in step.after)).detach().requires_grad_()
            with drawing_from(step.stepped, z.device):
                new_z, new_state = descend.step(step.t, z, state, g, active, step.scale)
                new_y = descend.domain.output(new_z)
        if k == taken - 1 and tape.checked:
            with torch.no_grad():
                _require_same_step(tape, descend.domain.output(z), new_y)
        bars = [z_bar, y_bar, *(state_bar or [None] * len(new_state))]
        z_bar, g_bar, *others = vjp([new_z, new_y, *new_state], bars, [z, g, *state, *tape.learned])
        state_bar, learned_bars = others[: len(state)], others[len(state) :]
        for i, bar in enumerate(learned_bars, start=len(targets)):
            totals[i] = plus(totals[i], bar)
        direction = plus(g_bar, from_gradients[k] if from_gradients else None)
        y_bar = None
        if direction is None:
            continue
        if active is not None and rows is None:  # masked: an example at rest sends nothing through its gradient
            direction = _only(direction, active)
        if tape.last is not None and step.drawn:  # the numbers that were drawn belong to the rows that were there
            direction = _only(direction, counts)
        elif tape.last is not None:
            rows = None if bool(moving.all()) else moving.nonzero().squeeze(1)  # type: ignore[union-attr]
        with torch.no_grad():
            point = descend.point(z, descend.domain.output(z)).detach()
        cached = _released(saved, step.cached) if tape.last is None else []  # with ``last`` the rows may differ
        # At the first step that is taken again and at the first of all. Where the energy has changed a tensor, at each.
        then = tape.energies[k : k + 1] if not compared or k == 0 or tape.changing else []
        compared = True
        with drawing_from(step.drawn, point.device):
            point_bar, bars = _products(tape, step.t, point, direction, rows, cached, then)
        for i, bar in enumerate(bars):
            if bar is not None and i < features and rows is not None:
                bar = torch.zeros_like(targets[i]).index_copy(0, rows, bar)
            totals[i] = plus(totals[i], bar)
        if descend.domain.through:
            z_bar = plus(z_bar, point_bar)
        else:
            y_bar = point_bar
    return (_start_bar(tape, saved[0], z_bar, y_bar), *totals)


def projected(before: Tensor, after: Tensor) -> Tensor:  # (B, …) twice -> (B,)
    """One number for each example that says where a step went."""
    step = flat((after - before).detach())
    return (step * torch.arange(1, step.shape[1] + 1, device=step.device).to(step).sin()).sum(1)


def _require_same_step(tape: Tape, before: Tensor, after: Tensor) -> None:
    """Refuse a rule or a domain that takes another step in the backward pass than it took in the descent."""
    if not after.numel():
        return
    found, known = projected(before, after), tape.end.isfinite()
    rounding = 100 * torch.finfo(after.dtype).eps * flat(after).norm(dim=1)
    slack = 10 * _SLACK.get(after.dtype, 0.05) * flat(after - before).norm(dim=1) + rounding
    if bool(((found - tape.end).abs() > slack).logical_and(known).any()):
        rule = getattr(tape.descend.rule, "rule", tape.descend.rule)  # that is taken further than it was made for
        raise RuntimeError(
            f"the rule {type(rule).__name__} or the domain {type(tape.descend.domain).__name__} takes "
            "another step in the backward pass than it took in the descent: it must keep what it changes in the state "
            "that begin and update return. Do so, or use gradient=Exact()"
        )


def _released(saved: list[Tensor], indices: list[int]) -> list[Tensor]:
    """Saved tensors that are not needed after this step, removed from the list."""
    taken = [saved[i] for i in indices]
    for i in indices:
        saved[i] = saved[0]
    return taken


@dataclass(frozen=True)
class _Again(Potential):
    """The potential in the backward pass, whose first energies are compared with those of the descent."""

    before: Tensor = field(default_factory=lambda: torch.empty(0))
    again = True

    def __call__(self, point: Tensor, part: ScoreFunction | None = None) -> Tensor:
        energies = super().__call__(point, part)
        if part is None:  # finite differences evaluate some terms alone, and at other points
            value = forward_ad.unpack_dual(energies).primal if forward_ad._current_level >= 0 else energies
            self._compare(value.detach().to(self.before.dtype))
        return energies

    def _compare(self, value: Tensor) -> None:
        if not value.numel():
            return
        known = self.before.isfinite()
        size = self.before.abs().where(known, 0.0).amax()
        if bool(((value - self.before).abs() > _SLACK.get(value.dtype, 0.05) * size).logical_and(known).any()):
            raise RuntimeError(
                f"the energy {type(self.energy).__name__} has another value in the backward pass than it had in the "
                "descent: something that it reads was changed in between, or it changes with every evaluation. Call "
                "backward before the change, or use gradient=Exact()"
            )


_SLACK = {torch.float64: 1e-9, torch.float32: 1e-3}


def _products(
    tape: Tape, t: int, point: Tensor, direction: Tensor, rows: Tensor | None, cached: list[Tensor], then: list[Tensor]
) -> Products:
    whole = tape.potential.at(tape.descend.rule.energy_step(t))
    part = whole if rows is None else whole.detached(rows)
    if then:
        before = then[0] if rows is None else then[0].index_select(0, rows)
        part = _Again(part.energy, part.features, part.view, part.learned, part.draws, before)
        if tape.changing and tape.estimated:
            with untouched(point.device, part.energy):  # the product draws the same numbers
                part.value(point if rows is None else point.index_select(0, rows))
    if rows is None:
        return tape.product(part, point, direction, *cached)
    at_rows, bars = tape.product(part, point.index_select(0, rows), direction.index_select(0, rows), *cached)
    full = None if at_rows is None else torch.zeros_like(point).index_copy(0, rows, at_rows)
    return full, bars


def _start_bar(tape: Tape, start: Tensor, z_bar: Tensor | None, y_bar: Tensor | None) -> Tensor | None:
    with torch.enable_grad():
        leaf = start.detach().requires_grad_()
        z = tape.descend.domain.enter(leaf)
        y = tape.descend.domain.output(z)
    return vjp([z, y], [z_bar, y_bar], [leaf])[0]


def _at_rest(bar: Tensor | None, active: Tensor | None) -> Tensor | None:
    return None if bar is None or active is None else _only(bar, ~active)


def _masked(bar: Tensor | None, kept: Tensor) -> Tensor | None:
    return None if bar is None else _only(bar, kept)


def _only(direction: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (direction.dim() - 1)), direction, 0.0)
