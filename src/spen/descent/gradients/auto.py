"""The strategy for this energy on this device, fast and lean: measured once, remembered."""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.gradients.checkpointed import Checkpointed
from spen.descent.gradients.compiled import Compiled
from spen.descent.gradients.exact import Exact
from spen.descent.gradients.finite_difference import FiniteDifference
from spen.descent.gradients.forward_over_reverse import ForwardOverReverse
from spen.descent.loop import Descend, Path
from spen.descent.potential import Potential
from spen.descent.repeatable import drawing_from, generators
from spen.protocols import GradientStrategy

SLACK = 0.05
"""How much slower than the fastest a strategy may be that is exact where that one is not, or that keeps less."""

WORTH = 4 * 2**20
"""The bytes of double backprop from which on a program that keeps fewer is made without being asked for."""

SMALL = 256 * 2**20
"""The bytes of double backprop up to which a GPU may keep all that a program would compute again."""

LEAST = 0.15
"""The least share of time that keeping is believed to save, whatever a busy machine says: a third of the work or so."""


@dataclass(frozen=True)
class Measurement:
    """One candidate: its seconds for a forward and backward pass, its error, or why it is not possible."""

    strategy: GradientStrategy
    seconds: float | None
    error: float | None  # relative to the first exact gradient; None where there is none to compare with
    problem: str | None = None
    kept: int | None = None  # bytes that the forward pass leaves for the backward pass

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.strategy}: not possible, {self.problem}"
        error = "" if self.error is None else f", relative gradient error {self.error:.1e}"
        kept = "" if self.kept is None else f", {self.kept / 2**20:.2f} MiB kept"
        return f"{self.strategy}: {1000 * (self.seconds or 0):.2f} ms{kept}{error}"


@dataclass(frozen=True)
class Choice:
    """What was chosen for one energy on one device, and from what."""

    strategy: GradientStrategy
    measurements: tuple[Measurement, ...]
    device: str
    energy: str
    tolerance: float

    def __str__(self) -> str:
        lines = [f"{self.strategy} for {self.energy} on {self.device}: {self._why()} of"]
        lines += [f"  {m}" for m in self.measurements]
        lines.append(f"(gradients more than {self.tolerance:g} away from the exact one were not considered)")
        return "\n".join(lines)

    def _why(self) -> str:
        fastest = min((m for m in self.measurements if m.seconds is not None), key=_seconds)
        if str(fastest.strategy) == str(self.strategy):
            return "the fastest"
        gain = "with an exact gradient" if not _is_exact(fastest.strategy) else "with less memory"
        return f"{gain}, within {SLACK:.0%} of {fastest.strategy}, the fastest"


class Auto(GradientStrategy):
    """Measure the candidates on the first batch, keep the best, and say why when asked.

    A candidate is out if the energy does not allow it, if it runs out of memory, or if its gradient is more than
    ``tolerance`` (relative) away from the exact one, where an exact one is possible. The best is the fastest, unless
    another within 5 % of it is exact where it is not, or else keeps fewer bytes for the backward pass. The choice is
    remembered for each energy, device and shape; ``explain()`` tells it. Measured times vary: for runs that must be
    equal bit for bit, name the strategy instead.

    Traced programs compete too. On a GPU, after ``patience`` batches of a shape, everything is measured once more with
    ``Compiled()``, fused and captured in a few seconds up to half a minute, and ``Compiled(keep=True)`` where double
    backprop keeps 256 MiB at most: a short run does not wait for it. On a CPU, where it keeps 4 MiB or more,
    ``Compiled(keep=True)``, made in a second or a few; if it wins, it keeps results for as few steps as 5 %, or half
    of what it gained over the others, allow. ``compiled=True`` lets all of them compete, always, on a GPU those with
    bfloat16 products too where the tolerance allows it. ``False``: none.
    """

    def __init__(
        self, tolerance: float = 1e-2, *, repeats: int = 3, compiled: bool | None = None, patience: int = 30
    ) -> None:
        if not tolerance > 0 or repeats < 1:
            raise ValueError(f"Auto needs tolerance > 0 and repeats ≥ 1, not {tolerance} and {repeats}")
        if patience < 0:
            raise ValueError(f"Auto needs patience ≥ 0, not {patience}")
        self.tolerance = tolerance
        self.repeats = repeats
        self.compiled = compiled
        self.patience = patience
        self._choices: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], _Remembered]] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: Choice | None = None

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Path:
        if start.shape[0] == 0:  # nothing can be measured on it, and every energy allows this one
            return FiniteDifference(1.0).run(descend, potential, start)
        return self.choose(descend, potential, start).strategy.run(descend, potential, start)

    def choose(self, descend: Descend, potential: Potential, start: Tensor) -> Choice:
        """The remembered choice for this energy, or a new measurement."""
        remembered = self._choices.setdefault(potential.energy, {})
        key = (start.device, start.dtype, tuple(start.shape[1:]), descend.rule.steps, type(descend.domain))
        known = remembered.get(key)
        if known is None or known.waiting == 0:
            waits = self.patience if known is None and self.compiled is None and _programs_wait(start.device) else -1
            trial = _Trial(descend, potential, start, self.tolerance, self.repeats)
            with _put_back(descend, potential, start.device):
                choice = trial.choice(False if waits > 0 else self.compiled)
            known = remembered[key] = _Remembered(choice, waits)
        known.waiting -= 1
        self._latest = known.choice
        return self._latest

    def explain(self) -> str:
        """Why the latest choice was made."""
        if self._latest is None:
            return "Auto has not chosen yet: it measures on the first batch that is trained on"
        return str(self._latest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Auto:
        return self.__class__(**self._options())  # choices belong to the energy they were made for

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.__class__, **self._options()), ()

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tolerance", "repeats", "compiled", "patience")}

    def __repr__(self) -> str:
        given = "" if self.compiled is None else f", compiled={self.compiled}"
        return f"Auto({self.tolerance:g}{given})"


@dataclass
class _Remembered:
    choice: Choice
    waiting: int  # batches until it is made anew; below 0: it stays


def _programs_wait(device: torch.device) -> bool:
    """Whether making a program takes so long here that a run should have lasted a while first."""
    return device.type != "cpu"


def _plain() -> list[GradientStrategy]:
    return [Exact(), Checkpointed(), ForwardOverReverse(), FiniteDifference()]


def _programs(compiled: bool | None, device: torch.device, kept: int) -> list[GradientStrategy]:
    """Those that compete: as asked, or by what double backprop keeps."""
    on_cpu = device.type == "cpu"
    found: list[GradientStrategy] = []
    if compiled or (compiled is None and (kept >= WORTH if on_cpu else kept <= SMALL)):
        found.append(Compiled(keep=True, patience=0))
    if compiled:
        found.append(Compiled(Checkpointed(), patience=0))
    if compiled or (compiled is None and not on_cpu):
        found.append(Compiled(patience=0))
    if compiled and not on_cpu:
        found.append(Compiled(precision=torch.bfloat16, patience=0))
    return found


@contextmanager
def _put_back(descend: Descend, potential: Potential, device: torch.device) -> Iterator[None]:
    """Leave random numbers and buffers as they were: a trial is not a part of training."""
    parts = [part for whole in (potential.energy, descend.rule, descend.domain) for part in whole.modules()]
    held = [(p._buffers, n, b, b._version, b.clone()) for p in parts for n, b in p._buffers.items() if b is not None]
    try:
        with drawing_from(generators(device), device):
            yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, version, value in held:
                if buffers[name] is not buffer or buffer._version != version:
                    buffers[name] = buffer.copy_(value)


@dataclass
class _Trial:
    """The batch on which candidates are measured, and what is known of them so far."""

    descend: Descend
    potential: Potential
    start: Tensor
    tolerance: float
    repeats: int
    reference: list[Tensor] | None = None  # the first exact gradient

    def choice(self, compiled: bool | None) -> Choice:
        tried = [self._tried(strategy) for strategy in _plain()]
        device = self.start.device
        tried += [self._tried(strategy) for strategy in _programs(compiled, device, tried[0].kept or 0)]
        measured = self._timed(tried)
        possible = [m for m in measured if m.problem is None]
        if not possible:
            reasons = "; ".join(str(m) for m in measured)
            raise RuntimeError(f"no strategy can differentiate this descent: {reasons}")
        allowed = (1 + SLACK) * min(map(_seconds, possible))
        near = [m for m in possible if _seconds(m) <= allowed]
        best = min(near, key=lambda m: (not _is_exact(m.strategy), m.kept or 0, _seconds(m)))
        if isinstance(best.strategy, Compiled) and best.strategy.keep and device.type == "cpu":
            # Half of what a program gained over the plain strategies is spent on memory.
            plain = min((_seconds(m) for m in possible if not isinstance(m.strategy, Compiled)), default=0.0)
            measured += [best := m for m in self._thinned(best, max(allowed, (_seconds(best) + plain) / 2))]
        for strategy in (m.strategy for m in measured if m.strategy is not best.strategy):
            if isinstance(strategy, Compiled):
                strategy.forget()
        name = type(self.potential.energy).__name__
        return Choice(best.strategy, tuple(measured), str(self.start.device), name, self.tolerance)

    def _once(self, strategy: GradientStrategy, kept: _Kept | None = None) -> list[Tensor]:
        return _training_step(strategy, self.descend, self.potential, self.start, kept)

    def _tried(self, strategy: GradientStrategy) -> Measurement:
        """Whether it is possible and right, and what it keeps."""
        kept = _Kept(self.potential)
        try:
            if isinstance(strategy, Compiled):
                self._once(strategy)  # the program is made
            gradients = self._once(strategy, kept)
        except Exception as error:
            return Measurement(strategy, None, None, _first_sentence(error))
        if isinstance(strategy, Compiled) and self.start.device.type == "cuda":
            for _ in range(2):  # a graph is captured on the third descent: only then is it what training will meet
                gradients = self._once(strategy)
        distance = None
        if self.reference is not None:
            distance = _distance(gradients, self.reference)
            if not distance <= self.tolerance:
                problem = f"its gradient is {distance:.1e} away from the exact one"
                return Measurement(strategy, None, distance, problem)
        elif _is_exact(strategy) and not isinstance(strategy, Compiled):
            self.reference = gradients
        return Measurement(strategy, math.inf, distance, kept=kept.most)

    def _timed(self, tried: list[Measurement]) -> list[Measurement]:
        """In turns, so that a busy moment of the machine meets everyone; the hopeless take one turn."""
        seconds = [m.seconds for m in tried]
        for turn in range(self.repeats):
            hopeful = 2 * min((s for s in seconds if s is not None), default=0.0) if turn else math.inf
            for i, measurement in enumerate(tried):
                before = seconds[i]
                if before is not None and before <= hopeful:
                    seconds[i] = min(before, self._seconds(measurement.strategy))
        return [replace(m, seconds=s) for m, s in zip(tried, seconds, strict=True)]

    def _seconds(self, strategy: GradientStrategy) -> float:
        return _timed(lambda: self._once(strategy), self.start.device)

    def _thinned(self, whole: Measurement, allowed: float) -> list[Measurement]:
        """The fewest kept steps that the time allows, from a measurement with half of them: time is linear in these."""
        steps, strategy = self.descend.rule.steps, whole.strategy
        assert isinstance(strategy, Compiled)
        half = self._tried(strategy.keeping(0.5))
        if half.problem is not None or half.kept == whole.kept:
            return []
        again, half = self._timed([replace(whole, seconds=math.inf), half])  # in turns: their ratio is what counts
        slower = max(_seconds(half) / _seconds(again) - 1, 0.5 * LEAST)
        each = _seconds(whole) * slower / (steps - round(steps / 2))  # seconds for a step whose results are made again
        spared = int(min((allowed - _seconds(whole)) / each + 1e-6, steps - 1))
        return [half, *self._timed([self._tried(strategy.keeping(1 - spared / steps))])]


def _seconds(measurement: Measurement) -> float:
    return math.inf if measurement.seconds is None else measurement.seconds


def _is_exact(strategy: GradientStrategy) -> bool:
    return not isinstance(strategy, FiniteDifference) and getattr(strategy, "precision", None) is None


def _training_step(
    strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor, kept: _Kept | None = None
) -> list[Tensor]:
    """Gradients of a fixed weighted sum of the outputs, touching nobody's .grad or F's graph.

    ``kept`` watches the forward pass. Not the backward pass: there, hooks on saved tensors and forward mode together
    would make cycles that nobody collects.
    """
    with torch.enable_grad():
        cut = potential.detached()
        others = [*cut.feature_tensors(), *cut.parameters()]
        # As training will ask for it, so that a program made here serves there.
        leaf = start.detach().requires_grad_(start.requires_grad or not others)
        with nullcontext() if kept is None else kept.watched():
            path = strategy.run(descend, cut, leaf)
        total = sum(((y * _weights(y)).sum() for y in path.outputs), torch.zeros((), device=start.device))
        inputs = [leaf, *others] if leaf.requires_grad else others
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients, strict=True)]


class _Kept:
    """The most bytes that saved tensors hold at once, parameters not counted."""

    def __init__(self, potential: Potential) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in potential.energy.parameters()}
        self.holders: Counter[int] = Counter()  # by address
        self.now = self.most = 0

    def watched(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(partial(_Held, self), lambda held: held.tensor)

    def count(self, address: int, size: int, holders: int) -> None:
        if address in self.own:
            return
        before = self.holders[address]
        self.holders[address] += holders
        self.now += size * ((self.holders[address] > 0) - (before > 0))
        self.most = max(self.most, self.now)


class _Held:
    """Lives as long as autograd keeps the tensor."""

    def __init__(self, kept: _Kept, tensor: Tensor) -> None:
        self.kept, self.tensor = kept, tensor
        try:
            storage = tensor.untyped_storage()
            self.place = storage.data_ptr(), storage.nbytes()
        except RuntimeError:  # forward mode's symbolic zeros have no memory
            self.place = 0, 0
        kept.count(*self.place, 1)

    def __del__(self) -> None:
        self.kept.count(*self.place, -1)


def _weights(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y[0].numel(), device=y.device, dtype=y.dtype).view(y.shape[1:])


def _distance(gradients: list[Tensor], reference: list[Tensor]) -> float:
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(gradients, reference, strict=True))
    size = sum(float(b.double().square().sum()) for b in reference)
    return (difference / size) ** 0.5 if size > 0 else difference**0.5


def _timed(once: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _first_sentence(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


__all__ = ["Auto", "Choice", "Measurement"]
