"""A strategy whose gradient and products run as compiled programs, and whose whole descent is one launch on a GPU."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.checkpointed import Checkpointed
from spen.gradients.compiled.shapes import Key, modes, signature
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.random_state import generators, same
from spen.gradients.replay import Replayed, Tape, refuse_replica, replayed_by
from spen.gradients.second_order import require_known_tensors
from spen.gradients.snapshots import untouched
from spen.protocols import GradientStrategy
from spen.tensors import flatten, unflatten

if TYPE_CHECKING:  # the compiler takes seconds to import: only a program needs it
    from spen.gradients.compiled.cuda_graphs import Recorder
    from spen.gradients.compiled.guards import Guarded
    from spen.gradients.compiled.trace import Bound, Program


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

    A shape is compiled when it comes back: the first ``patience`` batches of it run through the plain strategy, and
    after ``shapes`` programs new ones stay plain. A program runs only for the energy it was made from: whatever the
    energy reads is compared before every descent, and a change makes a new program
    (``spen.gradients.compiled.guards``). Under autocast, and for rules with ``backtracks``, the plain strategy runs.
    """

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
        plain = start.shape[0] == 0 or descend.rule.backtracks is not None
        if torch.is_autocast_enabled(start.device.type) or plain or torch.compiler.is_compiling():
            return self.through.run(descend, potential, start)
        ready = self._program(descend, potential, start)
        if ready is None:
            return self.through.run(descend, potential, start)
        masked = replace(descend, masked=True)
        if ready.recorder is not None:
            return ready.recorder.run(masked, potential, ready, start)
        bound = ready.bound
        tape = Tape(masked, ready.cut, bound.product, None, bound.gradient, self.keep, check=bound.require_unchanged)
        return replayed_by(tape, potential, start)

    def predict(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """The descent as one CUDA graph, after ``patience`` batches of a shape; plainly on a CPU."""
        on_gpu = start.device.type == "cuda" if self.graphs is None else self.graphs
        if not on_gpu or torch.is_autocast_enabled(start.device.type) or torch.compiler.is_compiling():
            return super().predict(descend, potential, start)
        if start.shape[0] == 0 or descend.rule.backtracks is not None or potential.energy in self._plain:
            return super().predict(descend, potential, start)
        try:
            ready = self._program(descend, potential, start, differentiated=False)
            if ready is not None and ready.recorder is not None:
                return ready.recorder.predict(replace(descend, masked=True), ready, start)
        except Exception:  # no program can be made; an error of the energy itself is raised again below
            self._plain.add(potential.energy)
        return super().predict(descend, potential, start)

    def _program(
        self, descend: Descend, potential: Potential, start: Tensor, *, differentiated: bool = True
    ) -> Ready | None:
        """The program for the present state of the energy, with the tensors it reads now; None: not yet."""
        refuse_replica(potential)
        slots = self._slots.get(potential.energy)
        if slots is None:
            slots = self._slots[potential.energy] = {}
        cut, key = _cut(potential)
        key = (differentiated, signature(start), descend.keep_gradients, descend.stop is None, *key)
        slot = slots.get(key)
        if slot is None:
            slot = slots[key] = _Slot()
        if slot.energy is None:
            slot.met += 1
            if slot.met <= self.patience or sum(s.energy is not None for s in slots.values()) >= self.shapes:
                return None
        return self._found(slot, descend, cut, start, differentiated)

    def _found(self, slot: _Slot, descend: Descend, cut: Potential, start: Tensor, differentiated: bool) -> Ready:
        from spen.gradients.compiled.chunks import Chunks
        from spen.gradients.compiled.guards import Guarded
        from spen.gradients.compiled.trace import Bound, evaluate

        chunks = Chunks(start.shape[0], self.rows)
        one = cut if chunks.number == 1 else cut.detached(torch.arange(chunks.size, device=start.device))
        if slot.energy is None or slot.point is None:
            with torch.no_grad():
                z = descend.domain.enter(start.detach())
                whole = descend.point(z, descend.domain.output(z))
            slot.point = whole[: chunks.size].detach().requires_grad_()
            self._look(one, slot.point, differentiated)
            slot.energy = Guarded(evaluate, f"the energy {type(cut.energy).__name__}")
        # Guards look at the type and shape of the point, not at its values: any will do.
        with torch.enable_grad():
            entry, tensors = slot.energy(cut.energy, cut.view, slot.point, one.features)
        if entry.built is None or not entry.built.roles.fits(one, tensors):
            product = self.through.product if differentiated else None
            with untouched(start.device, cut.energy):
                plain = self._look(one, slot.point, differentiated)
                program = self._made(entry.graph, one, slot.point, tensors, product, chunks)
                if plain is not None:
                    program.require_same(tensors, one, slot.point, plain, slot.energy.name)
            entry.built = program
        program = entry.built
        bound = Bound(program, tensors)
        graphs = start.device.type == "cuda" if self.graphs is None else self.graphs
        if not graphs or not program.capturable:
            return Ready(bound, cut, None, ())
        return self._captured(slot, descend, bound, cut, start)

    def _look(self, potential: Potential, point: Tensor, differentiated: bool) -> tuple[Tensor, Tensor] | None:
        """Evaluate the energy plainly: its own errors are shown as they are, and what a program would get wrong.

        None: it draws random numbers, and is another function every time.
        """
        before = generators(point.device)
        found = potential.gradient(point, partial(require_known_tensors, twice=True) if differentiated else None)
        return found if same(before, generators(point.device)) else None

    def _captured(self, slot: _Slot, descend: Descend, bound: Bound, cut: Potential, start: Tensor) -> Ready:
        """A CUDA graph holds the loop too: what rule, domain and stop read is guarded like the energy."""
        from spen.gradients.compiled.cuda_graphs import Recorder
        from spen.gradients.compiled.guards import Guarded
        from spen.gradients.compiled.not_traceable import NotTraceable

        if slot.loop is None:
            results = 1 + (0 if descend.stop is None else descend.rule.steps)
            slot.loop = Guarded(walk, "the descent", results)
        leaf = start.detach()
        try:
            with torch.enable_grad():
                entry, tensors = slot.loop(descend.domain, descend.rule, descend.stop, leaf)
        except NotTraceable:
            return Ready(bound, cut, None, ())
        addresses = (*bound.addresses(), *(t.data_ptr() for t in tensors if t is not leaf))
        recorder = slot.recorders.get((bound.program, entry))
        if recorder is None:
            recorder = slot.recorders[bound.program, entry] = Recorder(keep=self.keep)
        return Ready(bound, cut, recorder, addresses)

    def _made(
        self, graph: Any, potential: Potential, point: Tensor, tensors: tuple[Tensor, ...], product: Any, chunks: Any
    ) -> Program:
        from spen.gradients.compiled.cpu import for_cpu
        from spen.gradients.compiled.lower import lowered
        from spen.gradients.compiled.trace import Program

        on_gpu = point.device.type == "cuda"
        fuse = on_gpu if self.fuse is None else self.fuse

        def lowering(traced: Any, inputs: list[Tensor]) -> Any:
            if not on_gpu and not fuse and self.precision is None:
                return for_cpu(traced)
            return lowered(traced, inputs, fuse=fuse, precision=self.precision)

        keep = self.keep > 0 and product is not None
        return Program(graph, potential, point, tensors, product, lowering, keep=keep, chunks=chunks)

    def programs(self, energy: nn.Module) -> list[Program]:
        """All that were made for an energy."""
        slots = self._slots.get(energy, {}).values()
        entries = [entry for slot in slots if slot.energy is not None for entry in slot.energy.entries]
        return [entry.built for entry in entries if entry.built is not None]

    def forget(self) -> None:
        """Let go of all programs and of the memory that their graphs hold."""
        self._slots.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self.__class__(**self._options())  # programs belong to the energy they were made for

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._options(),)

    def _options(self) -> dict[str, Any]:
        names = ("through", "keep", "rows", "precision", "fuse", "graphs", "patience", "shapes")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        given = [f"keep={self.keep:g}"] if self.keep else []
        given += [f"rows={self.rows}"] if self.rows is not None else []
        given += [f"precision={self.precision}"] if self.precision is not None else []
        given += [f"{n}={getattr(self, n)}" for n in ("fuse", "graphs") if getattr(self, n) is not None]
        return f"Compiled({', '.join([str(self.through), *given])})"


def _again(options: dict[str, Any]) -> Compiled:
    return Compiled(**options)


@dataclass
class _Slot:
    """What is known for inputs of one shape."""

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
    recorder: Recorder | None
    addresses: tuple[int, ...]


def walk(domain: Any, rule: Any, stop: Any, start: Tensor) -> list[Tensor]:
    """What is traced to learn what a descent reads beside the energy."""
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


def _cut(potential: Potential) -> tuple[Potential, Key]:
    """The potential with features cut off from F, and what programs depend on in them, in one pass over the tree.

    Numbers of numpy become Python's, which they are equal to: Dynamo takes them for tensors.
    """
    leaves, structure = flatten(potential.features)
    own: list[Any] = []
    key: list[Any] = [structure]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            own.append(leaf.detach().requires_grad_(leaf.requires_grad))
            key.append((*signature(leaf), leaf.stride()))
        else:
            own.append(leaf.item() if isinstance(leaf, np.generic) else leaf)
            key.append(leaf)
    key.append(modes())
    return replace(potential, features=unflatten(own, structure)), tuple(key)
