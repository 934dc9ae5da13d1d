"""The fastest strategy that works for this energy on this device: measured once, remembered."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spen.descent.gradients.checkpointed import Checkpointed
from spen.descent.gradients.compiled import Compiled
from spen.descent.gradients.exact import Exact
from spen.descent.gradients.finite_difference import FiniteDifference
from spen.descent.gradients.forward_over_reverse import ForwardOverReverse
from spen.descent.loop import Descend, Path
from spen.descent.potential import Potential
from spen.protocols import GradientStrategy


@dataclass(frozen=True)
class Measurement:
    """One candidate: its seconds for a short forward and backward pass, its error, or why it is not possible."""

    strategy: GradientStrategy
    seconds: float | None
    error: float | None  # relative to the first exact gradient; None where there is none to compare with
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.strategy}: not possible, {self.problem}"
        error = "" if self.error is None else f", relative gradient error {self.error:.1e}"
        return f"{self.strategy}: {1000 * (self.seconds or 0):.2f} ms{error}"


@dataclass(frozen=True)
class Choice:
    """What was chosen for one energy on one device, and from what."""

    strategy: GradientStrategy
    measurements: tuple[Measurement, ...]
    device: str
    energy: str
    tolerance: float

    def __str__(self) -> str:
        lines = [f"{self.strategy} for {self.energy} on {self.device}: the fastest of"]
        lines += [f"  {m}" for m in self.measurements]
        lines.append(f"(gradients more than {self.tolerance:g} away from the exact one were not considered)")
        return "\n".join(lines)


class Auto(GradientStrategy):
    """Measure the candidates on the first batch, keep the fastest, and say why when asked.

    A candidate is out if the energy does not allow it, if it runs out of memory, or if its gradient is more than
    ``tolerance`` (relative) away from the exact one, where an exact one is possible. The choice is remembered for
    each energy, device and shape; ``explain()`` tells it. Measured times vary: for runs that must be equal bit for
    bit, name the strategy instead. ``compiled`` lets ``Compiled`` compete as well, on a GPU fused and captured and in
    bfloat16 too where the tolerance allows it: making the programs takes up to a minute.
    """

    def __init__(self, tolerance: float = 1e-2, *, repeats: int = 3, compiled: bool = False) -> None:
        if not tolerance > 0 or repeats < 1:
            raise ValueError(f"Auto needs tolerance > 0 and repeats ≥ 1, not {tolerance} and {repeats}")
        self.tolerance = tolerance
        self.repeats = repeats
        self.compiled = compiled
        self._choices: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Choice]] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: Choice | None = None

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Path:
        return self.choose(descend, potential, start).strategy.run(descend, potential, start)

    def choose(self, descend: Descend, potential: Potential, start: Tensor) -> Choice:
        """The remembered choice for this energy, or a new measurement."""
        remembered = self._choices.setdefault(potential.energy, {})
        key = (start.device, start.dtype, tuple(start.shape[1:]), descend.rule.steps, type(descend.domain))
        if key not in remembered:
            remembered[key] = self._measure(descend, potential, start)
        self._latest = remembered[key]
        return self._latest

    def explain(self) -> str:
        """Why the latest choice was made."""
        if self._latest is None:
            return "Auto has not chosen yet: it measures on the first batch that is trained on"
        return str(self._latest)

    def _measure(self, descend: Descend, potential: Potential, start: Tensor) -> Choice:
        candidates: list[GradientStrategy] = [Exact(), Checkpointed(), ForwardOverReverse(), FiniteDifference()]
        if self.compiled:
            candidates += _programs(start.device)
        reference: list[Tensor] | None = None
        measurements: list[Measurement] = []
        for strategy in candidates:
            measurement, gradients = self._try(strategy, descend, potential, start, reference)
            measurements.append(measurement)
            if reference is None and gradients is not None:
                reference = gradients
        possible = [m for m in measurements if m.problem is None]
        if not possible:
            reasons = "; ".join(str(m) for m in measurements)
            raise RuntimeError(f"no strategy can differentiate this descent: {reasons}")
        best = min(possible, key=lambda m: m.seconds or 0.0)
        return Choice(
            best.strategy, tuple(measurements), str(start.device), type(potential.energy).__name__, self.tolerance
        )

    def _try(
        self,
        strategy: GradientStrategy,
        descend: Descend,
        potential: Potential,
        start: Tensor,
        reference: list[Tensor] | None,
    ) -> tuple[Measurement, list[Tensor] | None]:
        def once() -> list[Tensor]:
            return _training_step(strategy, descend, potential, start)

        try:
            gradients = once()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return Measurement(strategy, None, None, _first_sentence(error)), None
        distance = None
        exact = not isinstance(strategy, FiniteDifference | Compiled)
        if isinstance(strategy, Compiled):
            for _ in range(3):  # a graph is captured on the third descent: only then is it what training will meet
                gradients = once()
        if reference is not None:
            distance = _distance(gradients, reference)
            if not distance <= self.tolerance:
                problem = f"its gradient is {distance:.1e} away from the exact one"
                return Measurement(strategy, None, distance, problem), None
        seconds = min(_timed(once, start.device) for _ in range(self.repeats))
        return Measurement(strategy, seconds, distance), gradients if exact else None


def _programs(device: torch.device) -> list[GradientStrategy]:
    programs: list[GradientStrategy] = [Compiled(Checkpointed(), patience=0), Compiled(patience=0)]
    if device.type == "cuda":
        programs.append(Compiled(precision=torch.bfloat16, patience=0))
    return programs


def _training_step(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> list[Tensor]:
    """Gradients of a fixed weighted sum of the outputs, touching nobody's .grad, F's graph or random state."""
    with torch.enable_grad():
        cut = potential.detached()
        leaf = start.detach().requires_grad_()
        path = strategy.run(descend, cut, leaf)
        total = sum(((y * _weights(y)).sum() for y in path.outputs), torch.zeros((), device=start.device))
        inputs = [leaf, *cut.feature_tensors(), *cut.parameters()]
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients, strict=True)]


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
