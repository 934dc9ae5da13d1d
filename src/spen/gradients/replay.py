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
from torch.nn.parameter import is_lazy

from spen.descent.loop import Descend, Iterates, Step
from spen.descent.potential import Inspect, Potential, is_replica
from spen.energies.compose import knows_step
from spen.gradients.pull_back import projected, pull_back
from spen.gradients.second_order import Products, exact_product, require_known_tensors
from spen.gradients.snapshots import Held, States, generators, same, set_generators, unhooked
from spen.protocols import GradientStrategy

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

    radius: float | None = None
    """Of finite differences, if it was given."""

    @abstractmethod
    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        """H v and ∂⟨v, ∇E⟩ at a point, for features and parameters in the order of the potential."""

    def inspect(self, potential: Potential, energies: Tensor, point: Tensor) -> None:
        """Refuse an energy, by its graph at the first step, that the products cannot differentiate."""
        forward = self.product if self.forward else None
        require_known_tensors(potential, energies, point, twice=self.exact, forward=forward, radius=self.radius)

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
    end: Tensor = field(default_factory=lambda: torch.empty(0))  # (B,): where the last step went
    changing: bool = False  # the descent has changed a tensor in place that the energy holds
    estimated: bool = False  # the product evaluates the energy at other points alone
    checked: bool = True  # compare the last step with that of the descent, for which the host waits
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
        self.changing = self.held.settle()
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
        before = self.descend.domain.output(store.tensors[self.steps[-1].z])
        self.end = projected(before, self.path.outputs[-1])
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
            return pull_back(self, saved, cotangents)


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
    tape = Tape(descend, potential.detached(), through.product, last, inspect=through.inspect, detached=detached)
    tape.estimated = not through.exact
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


def autocast_of(tensor: Tensor) -> Callable[[], torch.autocast]:
    """The autocast mode of now for the device of a tensor, to be entered again in the backward pass."""
    kind = tensor.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return partial(torch.autocast, kind, dtype, enabled=enabled)
