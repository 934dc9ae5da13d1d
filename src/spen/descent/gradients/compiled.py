"""A strategy whose gradient and products run as compiled programs, and whose whole descent is one launch on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from spen.descent.compiled.graphs import Recorder
from spen.descent.compiled.host import for_host
from spen.descent.compiled.lower import lowered
from spen.descent.compiled.trace import Flat, Program
from spen.descent.gradients.forward_over_reverse import ForwardOverReverse
from spen.descent.gradients.replay import Replayed, replay
from spen.descent.loop import Descend, Path
from spen.descent.potential import Potential
from spen.protocols import GradientStrategy

Key = tuple[Any, ...]


class Compiled(GradientStrategy):
    """The gradients of ``through`` (ForwardOverReverse unless told), from programs made once for each shape.

    An energy is traced together with its derivatives, freed of products with zero, and on a GPU fused by
    torch.compile (``fuse``) and captured with the whole descent in a CUDA graph (``graphs``). ``precision=
    torch.bfloat16`` rounds the operands of wide convolutions and matrix products; the descent itself, the narrow
    first layers and all sums stay in float32. Finite differences of rounded numbers are noise, so that needs
    ForwardOverReverse or Checkpointed.

    ``keep`` is the share of the steps, 0 … 1, whose expensive results (wide convolutions, matrix products) are kept
    for the backward pass instead of being computed again, ``True`` is all: on a CPU the time of double backprop, at
    about a quarter of its memory for convolutional energies. Where nothing is expensive nothing is kept.

    ``rows`` sends the batch through the programs in pieces of so many examples at most: the memory that they work in
    shrinks in proportion, and time grows a little.

    A shape is compiled when it comes back: the first ``patience`` batches of it run through the plain strategy, and
    after ``shapes`` programs new ones stay plain. Attributes that are no parameters or buffers are part of a program:
    when one of them is replaced, a new one is made. Under autocast the plain strategy runs.
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
        if not isinstance(self.through, Replayed):
            raise ValueError(f"Compiled goes through a strategy that replays the steps, not {self.through}")
        if precision not in (None, torch.bfloat16):
            raise ValueError(f"precision must be torch.bfloat16 or None, not {precision}")
        if precision is not None and not self.through.exact:
            raise ValueError(f"{self.through} in {precision} is noise; compile ForwardOverReverse() instead")
        if not 0 <= keep <= 1:
            raise ValueError(f"keep is the share of the steps that are kept, from 0 to 1, not {keep}")
        if keep and not self.through.exact:
            raise ValueError(f"{self.through} asks for gradients at other points: there is nothing to keep for it")
        if rows is not None and rows < 1:
            raise ValueError(f"rows is how many examples are computed at once, 1 or more, not {rows}")
        if patience < 0 or shapes < 1:
            raise ValueError(f"Compiled needs patience ≥ 0 and shapes ≥ 1, not {patience} and {shapes}")
        self.keep, self.rows = float(keep), rows
        self.precision, self.fuse, self.graphs = precision, fuse, graphs
        self.patience, self.shapes = patience, shapes
        self._met: weakref.WeakKeyDictionary[nn.Module, dict[Key, int]] = weakref.WeakKeyDictionary()
        self._programs: weakref.WeakKeyDictionary[nn.Module, dict[Key, Program | Recorder]] = (
            weakref.WeakKeyDictionary()
        )

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Path:
        if torch.is_autocast_enabled(start.device.type) or start.shape[0] == 0:
            return self.through.run(descend, potential, start)
        program = self._program(descend, potential, start)
        if program is None:
            return self.through.run(descend, potential, start)
        masked = replace(descend, masked=True)
        if isinstance(program, Recorder):
            return program.run(masked, potential, start)
        return replay(masked, potential, start, program.product, gradient=program.gradient, keep=self.keep)

    def _program(self, descend: Descend, potential: Potential, start: Tensor) -> Program | Recorder | None:
        programs = self._programs.setdefault(potential.energy, {})
        key = _key(descend, potential, start)
        if key in programs:
            return programs[key]
        met = self._met.setdefault(potential.energy, {})
        met[key] = met.get(key, 0) + 1
        if met[key] <= self.patience or len(programs) >= self.shapes:
            return None
        on_gpu = start.device.type == "cuda"
        made = self._made(descend, potential, start, on_gpu)
        # An energy that notes something while it is traced has other attributes now, and keeps these from here on.
        programs[_key(descend, potential, start)] = made
        return made

    def _made(self, descend: Descend, potential: Potential, start: Tensor, on_gpu: bool) -> Program | Recorder:
        with torch.no_grad():
            z = descend.domain.enter(start.detach())
            point = descend.point(z, descend.domain.output(z))
        fuse = on_gpu if self.fuse is None else self.fuse

        def lowering(traced: GraphModule, inputs: list[Tensor]) -> Flat:
            if not on_gpu and not fuse and self.precision is None:
                return for_host(traced)
            return lowered(traced, inputs, fuse=fuse, precision=self.precision)

        program = Program(
            potential.detached(),
            point,
            self.through.product,
            lowering,
            keep=self.keep > 0,
            rows=self.rows,
        )
        graphs = on_gpu if self.graphs is None else self.graphs
        return Recorder(program, keep=self.keep) if graphs and program.capturable else program

    def keeping(self, keep: float) -> Compiled:
        """The same strategy with another share of kept steps, from the same programs where they are no graphs yet."""
        other = self.__class__(**{**self._options(), "keep": keep})
        if self.keep and keep:
            for energy, programs in self._programs.items():
                other._programs[energy] = {key: p for key, p in programs.items() if isinstance(p, Program)}
        return other

    def forget(self) -> None:
        """Let go of all programs and of the memory that their graphs hold."""
        self._programs.clear()
        self._met.clear()

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


def _key(descend: Descend, potential: Potential, start: Tensor) -> Key:
    leaves, spec = pytree.tree_flatten(potential.features)
    features = tuple((_signature(leaf), leaf.stride()) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    tensors, numbers = [], []
    for whole in (potential.energy, descend.rule, descend.domain):
        for part in whole.modules():  # once: this is asked for at every batch
            held = (*part._parameters.values(), *part._buffers.values())
            tensors += [(t.data_ptr(), t.requires_grad) for t in held if t is not None]
            numbers += [_number(value) for name, value in vars(part).items() if name not in _INTERNAL]
    return _signature(start), spec, features, tuple(tensors), tuple(numbers), descend.keep_gradients, repr(descend.stop)


_INTERNAL = vars(nn.Module()).keys() - {"training"}


def _number(value: Any) -> Any:
    """An attribute as a program holds it: numbers and words as they were, a tensor or a function by what it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_number(v) for v in value)
    if isinstance(value, dict):
        return tuple((str(k), _number(v)) for k, v in value.items())
    return _Same(value)


class _Same:
    """Equal for one object alone. It is not kept alive: it may hold the energy whose programs are remembered."""

    __slots__ = ("found", "number")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            self.found: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # a dtype, a range, a complex number
            self.found = lambda: value

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        # An object that is gone is equal to nothing: its successor may have its address.
        return isinstance(other, _Same) and (mine := self.found()) is not None and mine is other.found()


def _signature(tensor: Tensor) -> Key:
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad
