"""One autograd Function that stores the iterates alone and takes the steps again, backwards (Sec. 4.3).

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

from spen.descent.loop import Descend, Iterates, Step
from spen.descent.potential import Inspect, Potential, ScoreFunction, is_replica
from spen.gradients.random_state import States, drawing_from, generators, same, set_generators
from spen.gradients.second_order import Products, plus, require_known_tensors
from spen.gradients.snapshots import Held
from spen.protocols import GradientStrategy

Evaluation = Callable[[Potential, Tensor], tuple[Tensor, ...]]
"""(∇E, E) at a point, and what the product at that point may want back."""

ProductFunction = Callable[..., Products]
"""H v and ∂⟨v, ∇E⟩ for a potential, a point, a direction, and what was kept of the evaluation, all of it or nothing."""

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
        return replay(descend, potential, start, self.product, twice=self.exact, forward=self.forward)


def replayed(through: GradientStrategy, who: str) -> Replayed:
    """``through``, if it has products of its own for another strategy to use."""
    if not isinstance(through, Replayed):
        raise ValueError(
            f"{who} takes its products from Checkpointed(), ForwardOverReverse() or FiniteDifference(), not {through}"
        )
    return through


@dataclass(frozen=True)
class Taken:
    """One step on the tape: where its tensors are among the saved ones, and who moved."""

    t: int
    z: int
    before: list[int]
    after: list[int]
    kept: list[int]  # what the evaluation left for the product
    active: Tensor | None  # (B,) bool; None: every example moves
    rows: Tensor | None  # the indices of the active ones
    scale: Tensor | None  # (B,): the share of the direction that was taken; None: all of it
    drawn: States  # of the generators before the energy was evaluated; nothing where it draws no numbers


@dataclass
class Tape:
    """What the backward pass needs beside the saved tensors."""

    descend: Descend
    potential: Potential
    product: ProductFunction
    last: int | None = None  # differentiate this many last steps of each example; None: all
    gradient: Evaluation = Potential.gradient
    keep: float = 0.0  # the share of the steps, from the last one on, whose evaluations leave something
    inspect: Inspect | None = None  # looks at the graph of the energy's first evaluation
    check: Callable[[], None] = lambda: None  # raises if the backward pass would read other tensors than were there
    detached: bool = False  # cut iterates and states off from the step before
    learned: list[Tensor] = field(default_factory=list)  # parameters of rule and domain
    path: Iterates = field(default_factory=Iterates)
    steps: list[Taken] = field(default_factory=list)
    energies: list[Tensor] = field(default_factory=list)  # of the steps; nothing if the energy is a program
    autocast: Callable[[], torch.autocast] = lambda: torch.autocast("cpu", enabled=False)

    def __post_init__(self) -> None:
        refuse_replica(self.potential)
        parts = (self.descend.rule, self.descend.domain)
        self.learned = [p for part in parts for p in part.parameters() if p.requires_grad]
        # To be put back around ``pull_back``. A program has tensors of its own, and asks no module for them.
        evaluated = [self.potential.energy] if self.gradient is Potential.gradient else []
        self.held = Held(*evaluated, *parts)
        if self.potential.energy in _drawing:
            self.potential = replace(self.potential, draws=True)

    def record(self, start: Tensor) -> list[Tensor]:
        """Run the loop; return the tensors that ``pull_back`` needs."""
        begin = generators(start.device)
        saved = self._record(start)
        if not self.potential.draws and not same(begin, generators(start.device)):
            # Once for each energy: from here on the state of the generators is noted at every step.
            _drawing.add(self.potential.energy)
            self.potential = replace(self.potential, draws=True)
            set_generators(begin, start.device)
            saved = self._record(start)
        return saved

    def _record(self, start: Tensor) -> list[Tensor]:
        store, self.steps = _Store(start), []
        self.autocast = autocast_of(start)
        # The backward pass begins with the last step and lets go of what it has used: what is made again comes last.
        first = self.descend.rule.steps - round(self.keep * self.descend.rule.steps)
        kept: tuple[Tensor, ...] = ()
        drawn: States = ()

        def evaluate(potential: Potential, point: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal kept, drawn
            drawn = generators(point.device) if self.potential.draws else ()
            if self.inspect is not None and not self.steps:
                g, energies = potential.gradient(point, self.inspect)
                kept = ()
                return g, energies
            g, energies, *others = self.gradient(potential, point)
            kept = tuple(others) if len(self.steps) >= first else ()
            return g, energies

        def watch(s: Step) -> None:
            before, after = store.put_all(s.before), store.put_all(s.after)
            place, others = store.put(s.z), store.append(kept)
            self.steps.append(Taken(s.t, place, before, after, others, s.active, s.rows, s.scale, drawn))

        # start may be y_0 itself; a fresh alias keeps an input of the Function from being one of its outputs.
        self.path = self.descend(self.potential, start.detach(), evaluate, watch=watch)
        self.energies = self.path.energies if self.gradient is Potential.gradient else []
        return store.tensors

    def path_of(self, results: Sequence[Tensor], taken: int) -> Iterates:
        """The path with the results of an autograd Function as its outputs and gradients.

        The tape lets go of them: they hold the Function, which holds the tape, and all would wait for Python's
        collector of cycles.
        """
        path = replace(self.path, outputs=list(results[:taken]), gradients=list(results[taken:]))
        self.path = Iterates(steps_used=path.steps_used)
        return path

    def pull_back(self, saved: list[Tensor], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The cotangents of start, features, parameters, and parameters of rule and domain; ``saved`` is used up."""
        with self.autocast():
            return _backward(self, saved, cotangents)


def replay(
    descend: Descend,
    potential: Potential,
    start: Tensor,
    product: ProductFunction,
    *,
    last: int | None = None,
    detached: bool = False,
    twice: bool = True,
    forward: bool = False,
) -> Iterates:
    """Run the loop without a graph; its backward replays the steps with ``product``.

    The graph of the energy at the first step is inspected: ``twice`` says whether ``product`` needs second derivatives.
    """
    inspect = partial(require_known_tensors, twice=twice, forward=forward)
    tape = Tape(descend, potential.detached(), product, last, inspect=inspect, detached=detached)
    return replayed_by(tape, potential, start)


def replayed_by(tape: Tape, potential: Potential, start: Tensor) -> Iterates:
    """Run the loop of a tape without a graph; its backward replays the steps.

    What the tape's ``gradient`` returns beyond (∇E, E) is saved for its ``product``, in the last ``keep`` · T steps.
    """
    inputs = [*potential.feature_tensors(), *potential.parameters(), *tape.learned]
    results = _Replay.apply(tape, start, *inputs)
    return tape.path_of(results, len(tape.steps))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: Tape, start: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        # The inputs too, which the backward pass evaluates the energy with: autograd says if they have been changed.
        ctx.save_for_backward(*tape.record(start), *inputs)
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        return (*tape.path.outputs, *tape.path.gradients)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tape: Tape = ctx.tape
        tape.check()
        with tape.held.put_back():
            return (None, *tape.pull_back(released(ctx), cotangents))


def refuse_replica(potential: Potential) -> None:
    """A gradient for each parameter needs to know the parameters, of which a copy has none."""
    if not potential.learned and is_replica(potential.energy):
        raise ValueError(
            "nn.DataParallel hands out copies without parameters, so the energy would get no gradient: "
            "use DistributedDataParallel, or gradient=Exact()"
        )


def released(ctx: Any) -> list[Tensor]:
    """The saved tensors of a Function, in a list that is the last to hold them if the graph is not retained."""
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

    def put_all(self, tensors: tuple[Tensor, ...]) -> list[int]:
        return [self.put(t) for t in tensors]

    def append(self, tensors: tuple[Tensor, ...]) -> list[int]:
        """Tensors that are let go one by one, and so share no place with others."""
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
            new_z, new_state = descend.step(step.t, z, state, g, active, step.scale)
            new_y = descend.domain.output(new_z)
        outputs = [(new_z, z_bar), (new_y, y_bar), *zip(new_state, state_bar or [None] * len(new_state), strict=True)]
        z_bar, g_bar, *others = _pull(outputs, [z, g, *state, *tape.learned])
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
        kept = _let_go(saved, step.kept) if tape.last is None else []  # the rows may be others by now
        then = [] if compared else tape.energies[k : k + 1]
        compared = True  # at the first step that is taken again
        with drawing_from(step.drawn, point.device):
            point_bar, bars = _products(tape, step.t, point, direction, rows, kept, then)
        for i, bar in enumerate(bars):
            if bar is not None and i < features and rows is not None:
                bar = torch.zeros_like(targets[i]).index_copy(0, rows, bar)
            totals[i] = plus(totals[i], bar)
        if descend.domain.through:
            z_bar = plus(z_bar, point_bar)
        else:
            y_bar = point_bar
    return (_start_bar(tape, saved[0], z_bar, y_bar), *totals)


def _let_go(saved: list[Tensor], indices: list[int]) -> list[Tensor]:
    """Saved tensors that nobody needs after this step."""
    taken = [saved[i] for i in indices]
    for i in indices:
        saved[i] = saved[0]
    return taken


@dataclass(frozen=True)
class _Again(Potential):
    """The potential in the backward pass, where it must have the values that it had."""

    before: Tensor = field(default_factory=lambda: torch.empty(0))

    def __call__(self, point: Tensor, part: ScoreFunction | None = None) -> Tensor:
        energies = super().__call__(point, part)
        if part is None:  # some terms alone, and other points, are asked for by finite differences
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
    tape: Tape, t: int, point: Tensor, direction: Tensor, rows: Tensor | None, kept: list[Tensor], then: list[Tensor]
) -> Products:
    whole = tape.potential.at(tape.descend.rule.energy_step(t))
    part = whole if rows is None else whole.detached(rows)
    if then:
        before = then[0] if rows is None else then[0].index_select(0, rows)
        part = _Again(part.energy, part.features, part.view, part.learned, part.draws, before)
    if rows is None:
        return tape.product(part, point, direction, *kept)
    at_rows, bars = tape.product(part, point.index_select(0, rows), direction.index_select(0, rows), *kept)
    full = None if at_rows is None else torch.zeros_like(point).index_copy(0, rows, at_rows)
    return full, bars


def _start_bar(tape: Tape, start: Tensor, z_bar: Tensor | None, y_bar: Tensor | None) -> Tensor | None:
    with torch.enable_grad():
        leaf = start.detach().requires_grad_()
        z = tape.descend.domain.enter(leaf)
        y = tape.descend.domain.output(z)
    (bar,) = _pull([(z, z_bar), (y, y_bar)], [leaf])
    return bar


def _pull(outputs: list[tuple[Tensor, Tensor | None]], inputs: list[Tensor]) -> list[Tensor | None]:
    """Back-propagate the cotangents that exist, through the outputs that depend on something."""
    live = [(out, bar) for out, bar in outputs if bar is not None and out.requires_grad]
    if not live:
        return [None] * len(inputs)
    return list(torch.autograd.grad([o for o, _ in live], inputs, [b for _, b in live], allow_unused=True))


def _masked(bar: Tensor | None, kept: Tensor) -> Tensor | None:
    return None if bar is None else _only(bar, kept)


def _only(direction: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (direction.dim() - 1)), direction, 0.0)


def autocast_of(tensor: Tensor) -> Callable[[], torch.autocast]:
    """The autocast that is on now for the device of a tensor, or none, to be entered again in the backward pass."""
    kind = tensor.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return partial(torch.autocast, kind, dtype, enabled=enabled)
