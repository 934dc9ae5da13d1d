"""One autograd Function that stores the iterates alone and recomputes the steps in the backward pass (Sec. 4.3).

For a step z' = step(z, h, g), g = ∇E(y(z)), back-propagation needs v, the cotangent of g, and then the two products
H v and ∂_θ⟨v, ∇E⟩. The step is cheap and autograd differentiates it; the strategies differ only in the products.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy

from spen.descent.loop import Descend, Iterates, Step
from spen.descent.potential import Inspect, Potential, ScoreFunction, is_replica
from spen.energies.compose import knows_step
from spen.gradients.second_order import (
    Products,
    exact_product,
    plus,
    require_known_tensors,
    vjp,
)
from spen.gradients.snapshots import Held, States, drawing_from, generators, same, set_generators, unhooked
from spen.protocols import GradientStrategy
from spen.tensors import flat

Evaluation = Callable[[Potential, Tensor], tuple[Tensor, ...]]
"""(∇E, E) at a point, and results to be cached for the product at that point."""

ProductFunction = Callable[..., Products]
"""H v and ∂⟨v, ∇E⟩ for a potential, a point, a direction, and the cached results of the evaluation: all or none."""

# Energies that have drawn random numbers.
_drawing: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Replayed(GradientStrategy):
    """A strategy that differentiates the descent step by step from the stored iterates."""

    exact = True
    """False: the products are estimates from first derivatives alone."""

    forward = False
    """True: the products are formed by forward mode."""

    @abstractmethod
    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        """H v and ∂⟨v, ∇E⟩ at a point, for features and parameters in the order of the potential."""

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        return replay(descend, potential, start, self)


class Checkpointed(Replayed):
    """The gradient of ``Exact``, from the iterates alone: one step's activations in memory at a time.

    Time: one more evaluation of the energy per step than ``Exact``.
    """

    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        return exact_product(potential, point, direction)


def through_or_default(through: GradientStrategy | None, who: str) -> Replayed:
    """The strategy that supplies the products of another, ``Checkpointed()`` if there is none."""
    if through is None:
        return Checkpointed()
    if not isinstance(through, Replayed):
        raise ValueError(
            f"{who} takes its products from Checkpointed(), ForwardOverReverse() or FiniteDifference(), not {through}"
        )
    return through


@dataclass(frozen=True)
class Taken:
    """One step on the tape: the indices of its tensors among the saved ones, and the examples that moved."""

    t: int
    z: int
    before: list[int]
    after: list[int]
    cached: list[int]  # results of the evaluation for the product
    active: Tensor | None  # (B,) bool; None: every example moves
    rows: Tensor | None  # the indices of the active ones
    scale: Tensor | None  # (B,): the share of the direction that was taken; None: all of it
    drawn: States  # of the generators before the energy was evaluated; empty where no numbers are drawn
    stepped: States  # of the generators before rule and domain took the step


@dataclass
class Tape:
    """What the backward pass needs beside the saved tensors."""

    descend: Descend
    potential: Potential
    product: ProductFunction
    last: int | None = None  # differentiate this many last steps of each example; None: all
    gradient: Evaluation = Potential.gradient
    keep: float = 0.0  # the share of the steps, from the last one on, whose results are cached
    inspect: Inspect | None = None  # called with the energy's first graph; with each one if the energy knows the step
    check: Callable[[Sequence[Tensor | None]], None] = lambda cotangents: None  # before the backward pass; may raise
    detached: bool = False  # detach iterates and states from the step before
    learned: list[Tensor] = field(default_factory=list)  # parameters of rule and domain
    path: Iterates = field(default_factory=Iterates)
    steps: list[Taken] = field(default_factory=list)
    energies: list[Tensor] = field(default_factory=list)  # of the steps; empty if the energy is a program
    end: Tensor = field(default_factory=lambda: torch.empty(0))  # (B,): the norms of the last output
    autocast: Callable[[], torch.autocast] = lambda: torch.autocast("cpu", enabled=False)

    def __post_init__(self) -> None:
        refuse_replica(self.potential)
        parts = (self.descend.rule, self.descend.domain)
        self.learned = [p for part in parts for p in part.parameters() if p.requires_grad]
        # Restored around ``pull_back``. A program holds its tensors itself and reads no module.
        evaluated = [self.potential.energy] if self.gradient is Potential.gradient else []
        self.held = Held(*evaluated, *parts)
        if self.potential.energy in _drawing:
            self.potential = replace(self.potential, draws=True)

    def record(self, start: Tensor) -> list[Tensor]:
        """Run the loop; return the tensors that ``pull_back`` needs."""
        begin = generators(start.device)
        saved = self._record(start)
        if not self.potential.draws and not same(begin, generators(start.device)):
            # Once for each energy: from here on the state of the generators is saved at every step.
            _drawing.add(self.potential.energy)
            self.potential = replace(self.potential, draws=True)
            set_generators(begin, start.device)
            saved = self._record(start)
        self.held.settle()
        return saved

    def _record(self, start: Tensor) -> list[Tensor]:
        store, self.steps = _Store(start), []
        self.autocast = autocast_of(start)
        # The backward pass begins with the last step and frees what it has used: steps without a cache come last.
        first = self.descend.rule.steps - round(self.keep * self.descend.rule.steps)
        cached: tuple[Tensor, ...] = ()
        drawn: States = ()
        stepped: States = ()

        def state_of(point: Tensor) -> States:
            return generators(point.device) if self.potential.draws else ()

        def evaluate(potential: Potential, point: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal cached, drawn, stepped
            drawn = state_of(point)
            if self.inspect is not None and (not self.steps or knows_step(potential.energy)):
                g, energies = potential.gradient(point, self.inspect)
                others: list[Tensor] = []
            else:
                g, energies, *others = self.gradient(potential, point)
            cached = tuple(others) if len(self.steps) >= first else ()
            stepped = state_of(point)
            return g, energies

        def watch(s: Step) -> None:
            before, after = [store.put(t) for t in s.before], [store.put(t) for t in s.after]
            z, others = store.put(s.z), store.append(cached)
            self.steps.append(Taken(s.t, z, before, after, others, s.active, s.rows, s.scale, drawn, stepped))

        # start may be y_0 itself; a fresh alias keeps an input of the Function from being one of its outputs.
        self.path = self.descend(self.potential, start.detach(), evaluate, watch=watch)
        self.energies = self.path.energies if self.gradient is Potential.gradient else []
        self.end = _norms(self.path.outputs[-1])
        return store.tensors

    def path_of(self, results: Sequence[Tensor], taken: int) -> Iterates:
        """The path with the results of an autograd Function as its outputs and gradients.

        The tape drops them: they refer to the Function, which refers to the tape, and the cycle would stay in memory
        until Python's garbage collector runs.
        """
        path = replace(self.path, outputs=list(results[:taken]), gradients=list(results[taken:]))
        self.path = Iterates(steps_used=path.steps_used)
        return path

    def pull_back(self, saved: list[Tensor], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The cotangents of start, features, parameters, and parameters of rule and domain; ``saved`` is used up."""
        with self.autocast(), unhooked([*self.potential.parameters(), *self.learned]):
            return _backward(self, saved, cotangents)


def replay(
    descend: Descend,
    potential: Potential,
    start: Tensor,
    through: Replayed,
    *,
    last: int | None = None,
    detached: bool = False,
) -> Iterates:
    """Run the loop without a graph; its backward pass recomputes the steps with the products of ``through``.

    The graph of the energy at the first step is inspected for what these products cannot differentiate.
    """
    if any(map(is_lazy, potential.learned)):  # an autograd Function takes the shapes of its inputs as they are
        with torch.no_grad():
            potential(descend.first_point(start))
    forward = through.product if through.forward else None
    inspect = partial(require_known_tensors, twice=through.exact, forward=forward)
    tape = Tape(descend, potential.detached(), through.product, last, inspect=inspect, detached=detached)
    return replayed_by(tape, potential, start)


def replayed_by(tape: Tape, potential: Potential, start: Tensor) -> Iterates:
    """Run the loop of a tape without a graph; its backward pass recomputes the steps.

    What the tape's ``gradient`` returns beyond (∇E, E) is saved for its ``product``, in the last ``keep`` · T steps.
    """
    inputs = [*potential.feature_tensors(), *potential.parameters(), *tape.learned]
    results = _Replay.apply(tape, start, *inputs)
    return tape.path_of(results, len(tape.steps))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: Tape, start: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        # The inputs too, with which the backward pass evaluates the energy: autograd raises if they have been changed.
        ctx.save_for_backward(*tape.record(start), *inputs)
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        return (*tape.path.outputs, *tape.path.gradients)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tape: Tape = ctx.tape
        tape.check(cotangents)
        with tape.held.put_back():
            return (None, *tape.pull_back(released(ctx), cotangents))


def refuse_replica(potential: Potential) -> None:
    """Refuse an energy that is a copy of nn.DataParallel: it has no parameters that a gradient could be sent to."""
    if not potential.learned and is_replica(potential.energy):
        raise ValueError(
            "nn.DataParallel hands out copies without parameters, so the energy would get no gradient: "
            "use DistributedDataParallel, or gradient=Exact()"
        )


def released(ctx: Any) -> list[Tensor]:
    """The saved tensors of a Function, in a list that holds the last reference if the graph is not retained."""
    saved = list(ctx.saved_tensors)
    ctx.maybe_clear_saved_tensors()
    return saved


class _Store:
    """Saved tensors, each once: states of consecutive steps share theirs."""

    def __init__(self, start: Tensor) -> None:
        self.tensors: list[Tensor] = [start]
        self._index = {id(start): 0}

    def put(self, tensor: Tensor) -> int:
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index[id(tensor)]

    def append(self, tensors: tuple[Tensor, ...]) -> list[int]:
        """Tensors that are freed one by one, and so share no index with others."""
        self.tensors.extend(tensors)
        return list(range(len(self.tensors) - len(tensors), len(self.tensors)))


def _backward(tape: Tape, saved: list[Tensor], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
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
        if tape.detached:
            z_bar, y_bar, state_bar = None, None, []
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
        if k == taken - 1:
            _require_same_step(tape, new_y.detach())
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
        then = [] if compared else tape.energies[k : k + 1]
        compared = True  # at the first step that is taken again
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


def _norms(y: Tensor) -> Tensor:  # (B, …) -> (B,)
    return flat(y.detach()).norm(dim=1)


def _require_same_step(tape: Tape, y: Tensor) -> None:
    """Refuse a rule or a domain that takes another step in the backward pass than it took in the descent."""
    if not y.numel() or (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    found, known = _norms(y), tape.end.isfinite()
    size = tape.end.where(known, 0.0).amax()
    if bool(((found - tape.end).abs() > _SLACK.get(y.dtype, 0.05) * size).logical_and(known).any()):
        raise RuntimeError(
            f"the rule {type(tape.descend.rule).__name__} or the domain {type(tape.descend.domain).__name__} takes "
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


def _masked(bar: Tensor | None, kept: Tensor) -> Tensor | None:
    return None if bar is None else _only(bar, kept)


def _only(direction: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (direction.dim() - 1)), direction, 0.0)


def autocast_of(tensor: Tensor) -> Callable[[], torch.autocast]:
    """The autocast mode of now for the device of a tensor, to be entered again in the backward pass."""
    kind = tensor.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return partial(torch.autocast, kind, dtype, enabled=enabled)
