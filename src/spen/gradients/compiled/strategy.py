"""A strategy whose gradient and products run as compiled programs, and whose whole descent is one launch on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.compiled.cuda_graphs import Recorder
from spen.gradients.compiled.errors import NotTraceable
from spen.gradients.compiled.guards import Guarded, Key, key_of, signature
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.replay import Checkpointed, Replayed, Tape, refuse_replica, replayed_by
from spen.gradients.second_order import require_known_tensors
from spen.gradients.snapshots import drawing_from, generators, same, untouched
from spen.protocols import GradientStrategy
from spen.tensors import flatten, unflatten

if TYPE_CHECKING:  # the compiler takes seconds to import: only a program needs it
    from spen.gradients.compiled.program import Bound, Program


class Compiled(GradientStrategy):
    """Exact gradients from programs that are made once for each shape.

    ``through`` says how the Hessian-vector products are formed before they are compiled: ``ForwardOverReverse()``, the
    fastest for convolutions, or ``Checkpointed()``, reverse over reverse.

    An energy is traced together with its derivatives, freed of products with zero, and on a GPU fused by
    torch.compile (``fuse``) and captured with the whole descent in a CUDA graph (``graphs``). ``precision=
    torch.bfloat16`` rounds the operands of wide convolutions and matrix products; the descent itself, the narrow
    first layers and all sums stay in float32.

    ``keep`` is the share of the steps, 0 … 1, whose expensive results (wide convolutions, matrix products) are kept
    for the backward pass instead of being computed again, ``True`` is all: on a CPU the time of double backprop, at
    about a quarter of its memory for convolutional energies. Where nothing is expensive nothing is kept.

    ``rows`` is the chunk size: the batch goes through the programs in chunks of at most so many examples. Their working
    memory shrinks in proportion, and time grows a little.

    A shape is compiled when it comes back: its first ``patience`` batches run through ``Checkpointed()``, and so do new
    shapes after ``shapes`` programs. A program runs only for the energy it was made from: whatever the energy reads is
    compared before every descent, and a change makes a new program (``spen.gradients.compiled.guards``). Under
    autocast, and for rules with ``backtracks``, no program runs.
    """

    plain = Checkpointed()

    def __init__(
        self,
        through: Replayed | None = None,
        *,
        keep: float = 0.0,
        rows: int | None = None,
        precision: torch.dtype | None = None,
        fuse: bool | None = None,
        graphs: bool | None = None,
        patience: int = 1,
        shapes: int = 32,
    ) -> None:
        self.through = ForwardOverReverse() if through is None else through
        if not isinstance(self.through, ForwardOverReverse | Checkpointed):
            raise ValueError(f"Compiled goes through ForwardOverReverse() or Checkpointed(), not {self.through}")
        if precision not in (None, torch.bfloat16):
            raise ValueError(f"precision must be torch.bfloat16 or None, not {precision}")
        if not 0 <= keep <= 1:
            raise ValueError(f"keep is the share of the steps that are kept, from 0 to 1, not {keep}")
        if rows is not None and rows < 1:
            raise ValueError(f"rows is how many examples are computed at once, 1 or more, not {rows}")
        if patience < 0 or shapes < 1:
            raise ValueError(f"Compiled needs patience ≥ 0 and shapes ≥ 1, not {patience} and {shapes}")
        self.keep, self.rows = float(keep), rows
        self.precision, self.fuse, self.graphs = precision, fuse, graphs
        self.patience, self.shapes = patience, shapes
        self._plain: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # energies that predict without programs
        self._slots: weakref.WeakKeyDictionary[nn.Module, dict[Key, _Slot]] = weakref.WeakKeyDictionary()

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        ready = None if _is_plain(descend, start) else self._program(descend, potential, start)
        if ready is None:
            return self.plain.run(descend, potential, start)
        masked = replace(descend, masked=True)
        if ready.recorder is not None:
            return ready.recorder.run(masked, potential, ready, start)
        return replayed_by(ready.tape(masked, self.keep), potential, start)

    def predict(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """The descent as one CUDA graph, after ``patience`` batches of a shape; without a program on a CPU."""
        if not self._uses_graphs(start) or _is_plain(descend, start) or potential.energy in self._plain:
            return super().predict(descend, potential, start)
        try:
            ready = self._program(descend, potential, start, differentiated=False)
            if ready is not None and ready.recorder is not None:
                return ready.recorder.predict(replace(descend, masked=True), ready, start)
        except Exception:  # no program can be made; an error of the energy itself is raised again below
            self._plain.add(potential.energy)
        return super().predict(descend, potential, start)

    def _uses_graphs(self, start: Tensor) -> bool:
        return start.is_cuda if self.graphs is None else self.graphs

    def _program(
        self, descend: Descend, potential: Potential, start: Tensor, *, differentiated: bool = True
    ) -> Ready | None:
        """The program for the present state of the energy, with the tensors it reads now; None: not yet."""
        refuse_replica(potential)
        slots = self._slots.setdefault(potential.energy, {})
        leaves, structure = flatten(potential.features)
        key = (differentiated, signature(start), descend.keep_gradients, descend.stop is None)
        slot = slots.setdefault((*key, *key_of(leaves, structure)), _Slot())
        if slot.energy is None:
            slot.met += 1
            if slot.met <= self.patience or sum(s.energy is not None for s in slots.values()) >= self.shapes:
                return None
        cut = replace(potential, features=unflatten(map(_cut, leaves), structure))
        return self._found(slot, descend, cut, start, differentiated)

    def _found(self, slot: _Slot, descend: Descend, cut: Potential, start: Tensor, differentiated: bool) -> Ready:
        from spen.gradients.compiled.lower import lowered
        from spen.gradients.compiled.program import Bound, Chunks, Program
        from spen.gradients.compiled.trace import evaluate

        chunks = Chunks(start.shape[0], self.rows)
        one = cut if chunks.number == 1 else cut.detached(torch.arange(chunks.size, device=start.device))
        if slot.energy is None or slot.point is None:
            slot.point = descend.first_point(start)[: chunks.size].detach().requires_grad_()
            self._evaluate(one, slot.point, differentiated)
            slot.energy = Guarded(evaluate, f"the energy {type(cut.energy).__name__}")
        # Guards depend on the type and shape of the point, not on its values: that of an earlier batch serves.
        with torch.enable_grad():
            entry, tensors = slot.energy(cut.energy, cut.view, slot.point, one.features)
        if entry.built is None or not entry.built.fits(one, tensors):
            product = self.through.product if differentiated else None
            fuse = start.is_cuda if self.fuse is None else self.fuse
            lowering = partial(lowered, fuse=fuse, precision=self.precision)
            keep = self.keep > 0 and differentiated
            with untouched(start.device, cut.energy):
                plain = self._evaluate(one, slot.point, differentiated)
                program = Program(entry.graph, one, slot.point, tensors, product, lowering, keep=keep, chunks=chunks)
                if plain is not None:
                    lower = self.precision is not None
                    program.require_same(tensors, one, slot.point, plain, slot.energy.name, lowered=lower)
            entry.built = program
        bound = Bound(entry.built, tensors)
        if not self._uses_graphs(start) or not bound.program.capturable:
            return Ready(bound, cut)
        return self._captured(slot, descend, bound, cut, start)

    def _evaluate(self, potential: Potential, point: Tensor, differentiated: bool) -> tuple[Tensor, Tensor] | None:
        """(∇E, E) without a program: errors of the energy itself, and of tensors that no gradient would reach.

        None: the energy draws random numbers, and a second evaluation has other values.
        """
        before = generators(point.device)
        found = potential.gradient(point, partial(require_known_tensors, twice=True) if differentiated else None)
        return found if same(before, generators(point.device)) else None

    def _captured(self, slot: _Slot, descend: Descend, bound: Bound, cut: Potential, start: Tensor) -> Ready:
        """A CUDA graph holds the loop too: what rule, domain and stop read is guarded like the energy."""
        if slot.loop is None:
            results = 1 + (0 if descend.stop is None else descend.rule.steps)
            slot.loop = Guarded(walk, "the descent", results)
        leaf = start.detach()
        try:
            with torch.enable_grad():
                entry, tensors = slot.loop(descend.domain, descend.rule, descend.stop, leaf)
        except NotTraceable:
            return Ready(bound, cut)
        if entry.built is None:
            before = generators(leaf.device)
            with drawing_from(before, leaf.device):
                walk(descend.domain, descend.rule, descend.stop, leaf)
                entry.built = same(before, generators(leaf.device))
        if not entry.built:  # the rule draws random numbers: a graph would draw others in the backward pass
            return Ready(bound, cut)
        addresses = (*bound.addresses(), *(t.data_ptr() for t in tensors if t is not leaf))
        recorder = slot.recorders.setdefault((bound.program, entry), Recorder(keep=self.keep))
        return Ready(bound, cut, recorder, addresses)

    def programs(self, energy: nn.Module) -> list[Program]:
        """All programs that were made for an energy."""
        slots = self._slots.get(energy, {}).values()
        entries = [entry for slot in slots if slot.energy is not None for entry in slot.energy.entries]
        return [entry.built for entry in entries if entry.built is not None]

    def forget(self) -> None:
        """Free all programs and the memory of their CUDA graphs."""
        self._slots.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("through", "keep", "rows", "precision", "fuse", "graphs", "patience", "shapes")
        # Programs belong to the energy they were made for: copies have none.
        return partial(Compiled, **{name: getattr(self, name) for name in names}), ()

    def __repr__(self) -> str:
        given = [f"keep={self.keep:g}"] if self.keep else []
        names = ("rows", "precision", "fuse", "graphs")
        given += [f"{n}={getattr(self, n)}" for n in names if getattr(self, n) is not None]
        return f"Compiled({', '.join([str(self.through), *given])})"


@dataclass
class _Slot:
    """The programs for inputs of one shape."""

    met: int = 0
    point: Tensor | None = None  # of the shape of those where the gradient is taken
    energy: Guarded | None = None
    loop: Guarded | None = None
    recorders: dict[Any, Recorder] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """A program for one descent, and the recorder that may run it as a CUDA graph over tensors at these addresses."""

    bound: Bound
    cut: Potential  # with features of its own, cut off from F
    recorder: Recorder | None = None
    addresses: tuple[int, ...] = ()

    def tape(self, descend: Descend, keep: float) -> Tape:
        """The tape of a descent with the program in the place of the energy."""
        bound = self.bound

        def check(cotangents: Sequence[Tensor | None]) -> None:
            bound.require_unchanged()

        return Tape(descend, self.cut, bound.product, None, bound.gradient, keep, check=check)


def walk(domain: Any, rule: Any, stop: Any, start: Tensor) -> list[Tensor]:
    """The loop without the energy, traced to find what else a descent reads."""
    z = domain.enter(start)
    y = domain.output(z)
    state = rule.begin(z)
    seen = []
    for t in range(rule.steps):
        direction, state = rule.update(t, z, z, state)
        z = domain.step(z, direction)
        previous, y = y, domain.output(z)
        if stop is not None:
            seen.append(stop.converged(previous, y))
    return [y, *seen]


def _is_plain(descend: Descend, start: Tensor) -> bool:
    """Whether no program can run this descent."""
    lowered = torch.is_autocast_enabled(start.device.type)
    return start.shape[0] == 0 or descend.rule.backtracks is not None or lowered or torch.compiler.is_compiling()


def _cut(leaf: Any) -> Any:
    """A tensor cut off from F. A number of numpy becomes Python's, which is equal: Dynamo takes it for a tensor."""
    if isinstance(leaf, Tensor):
        return leaf.detach().requires_grad_(leaf.requires_grad)
    return leaf.item() if isinstance(leaf, np.generic) else leaf
