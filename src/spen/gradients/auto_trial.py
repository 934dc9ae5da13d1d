"""How ``Auto`` compares strategies in a long run: on training steps, in turns."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.gradients.compiled import Compiled
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.second_order import Graph
from spen.gradients.snapshots import untouched
from spen.protocols import GradientStrategy

FASTER = 1.05
"""How many times as fast an exact strategy must be to replace another."""

MUCH_FASTER = 1.3
"""How many times as fast an inexact strategy must be, in its worst turn, to replace an exact one."""

TURNS = 4
"""How many training steps each of two strategies takes, in turns, when they are compared."""

WORTH = 4 * 2**20
"""A program on a CPU is tried if double backprop saves at least this many bytes."""


@dataclass
class Measurement:
    """A strategy beside the one that was used until then: the seconds of training steps, taken in turns."""

    strategy: str
    seconds: list[float] = field(default_factory=list)
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.strategy}: {self.problem}"
        return f"{self.strategy}: {1000 * min(self.seconds):.2f} ms a training step"


class Clock:
    """The time between one training step and the next, which is what a strategy is to shorten."""

    def __init__(self) -> None:
        self.trained = self.measured = self.latest = 0.0
        self.steps = 0
        self._recent: list[float] = []
        self._before: float | None = None

    def tick(self, wait_for: torch.device | None) -> None:
        """A step begins. While strategies are compared a GPU is waited for: the time is that of all its work."""
        if wait_for is not None and wait_for.type == "cuda":
            torch.cuda.synchronize(wait_for)
        now = time.perf_counter()
        if self._before is not None:
            self.latest = now - self._before
            self.trained += min(self.latest, 10.0)  # a pause is no training
            self._recent = [*self._recent[-8:], self.latest]
        self._before = now
        self.steps += 1

    @property
    def typical(self) -> float:
        return sorted(self._recent)[len(self._recent) // 2] if self._recent else math.inf


class Trial:
    """Two strategies take training steps in turns, on batches of one shape."""

    def __init__(self, chosen: GradientStrategy, candidate: GradientStrategy, shape: torch.Size) -> None:
        self.chosen, self.candidate, self.shape = chosen, candidate, shape
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of the candidate; of the chosen one
        self._turn: bool | None = None
        self._warm = 3 if isinstance(candidate, Compiled) else 1  # a CUDA graph is captured in the third descent

    @property
    def over(self) -> bool:
        seconds = self.seconds[True]
        hopeless = bool(seconds) and bool(self.seconds[False]) and min(seconds) > 3 * min(self.seconds[False])
        return hopeless or len(seconds) >= TURNS

    def note(self, seconds: float) -> None:
        """The time of the step before, if it was one of ours."""
        if self._turn is not None and self._warm <= 0:
            self.seconds[self._turn].append(seconds)
        elif self._turn:
            self._warm -= 1
        self._turn = None

    def strategy_for(self, start: Tensor) -> GradientStrategy:
        if start.shape != self.shape:
            return self.chosen
        self._turn = self._warm > 0 or len(self.seconds[True]) < len(self.seconds[False])
        return self.candidate if self._turn else self.chosen

    def winner(self) -> GradientStrategy:
        candidate, chosen = self.seconds[True], self.seconds[False]
        if is_exact(self.candidate):
            return self.candidate if min(candidate) * FASTER < min(chosen) else self.chosen
        return self.candidate if max(candidate) * MUCH_FASTER < min(chosen) else self.chosen


def is_exact(strategy: GradientStrategy) -> bool:
    return not isinstance(strategy, FiniteDifference) and getattr(strategy, "precision", None) is None


def problem_of(
    candidate: GradientStrategy,
    chosen: GradientStrategy,
    descend: Descend,
    potential: Potential,
    start: Tensor,
    tolerance: float | None,
) -> str | None:
    """Why the candidate cannot be used on this batch; None: its gradient is that of the chosen strategy."""
    if isinstance(candidate, Compiled) and start.device.type == "cpu":
        held, _ = held_bytes(descend, potential, start)
        if held * descend.rule.steps < WORTH:
            return f"not tried: double backprop holds less than {in_mib(WORTH)}"
    allowed = _rounding(start) if is_exact(candidate) else (tolerance or 0.0)
    try:
        with untouched(start.device, potential.energy, descend.rule, descend.domain):
            right = training_step(chosen, descend, potential, start)
        with untouched(start.device, potential.energy, descend.rule, descend.domain):
            found = training_step(candidate, descend, potential, start)
    except Exception as failure:  # whatever it is, the chosen strategy still works
        return f"not possible, {sentence(failure)}"
    error = distance(found, right)
    return None if error <= allowed else f"its gradient is {error:.1e} away from that of {chosen}"


def held_bytes(descend: Descend, potential: Potential, start: Tensor) -> tuple[int, set[str]]:
    """The bytes that autograd keeps for one step of double backprop, and the operations of the energy."""
    cut = potential.detached()
    known = (*potential.energy.parameters(), *cut.feature_tensors())
    own = {storage.data_ptr() for tensor in known for storage in _storages(tensor)}
    storages: dict[int, int] = {}
    operations: set[str] = set()

    def pack(tensor: Tensor) -> Tensor:
        storages.update((storage.data_ptr(), storage.nbytes()) for storage in _storages(tensor))
        return tensor

    point = descend.first_point(start)

    def note(_: Potential, energies: Tensor, __: Tensor) -> None:
        operations.update(Graph.of(energies).operations)

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            cut.differentiable_gradient(point, note)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        cut.differentiable_gradient(point, note)  # torch.func inside of the energy: its tensors cannot be counted
        return 0, operations
    return sum(size for address, size in storages.items() if address not in own), operations


def in_mib(number: int) -> str:
    return f"{number / 2**20:,.1f} MiB"


def _rounding(start: Tensor) -> float:
    """How far two exact gradients may be apart. On a GPU products may be in TF32."""
    if start.dtype is torch.float64:
        return 1e-8
    return 1e-2 if start.device.type == "cuda" else 1e-3


def training_step(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> list[Tensor]:
    """Gradients of a fixed weighted sum of the outputs; no .grad and nothing of F's graph is changed."""
    with torch.enable_grad():
        cut = potential.detached()
        others = [*cut.feature_tensors(), *cut.parameters()]
        leaf = start.detach().requires_grad_(start.requires_grad or not others)
        path = strategy.run(descend, cut, leaf)
        total = sum(((y * _weights(y)).sum() for y in path.outputs), torch.zeros((), device=start.device))
        inputs = [leaf, *others] if leaf.requires_grad else others
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients, strict=True)]


def _weights(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y[0].numel(), device=y.device, dtype=y.dtype).view(y.shape[1:])


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The memory of a tensor; a sparse one has that of its indices and values."""
    if tensor.layout is torch.strided:
        return [tensor.untyped_storage()]
    return [t.untyped_storage() for t in (tensor._indices(), tensor._values())] if tensor.is_sparse else []


def distance(gradients: list[Tensor], reference: list[Tensor]) -> float:
    difference = sum(float((a - b).abs().double().square().sum()) for a, b in zip(gradients, reference, strict=True))
    size = sum(float(b.abs().double().square().sum()) for b in reference)
    return (difference / size) ** 0.5 if size > 0 else difference**0.5


def sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
