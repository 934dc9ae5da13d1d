"""Time and memory of every gradient strategy for a model on a device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import spen
from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
)
from spen.gradients.auto_trial import Clock, distance, sentence, training_step
from spen.protocols import GradientStrategy
from spen.tasks.task import Opened
from spen.tensors import tree_map


@dataclass(frozen=True)
class Timed:
    """One strategy: a forward and backward pass through the descent, F and Init not counted; or why it cannot be."""

    strategy: str
    milliseconds: float | None
    memory_mib: float | None
    error: float | None  # relative to the first exact gradient; None for that one
    problem: str | None


@dataclass(frozen=True)
class Report:
    """Every strategy on one batch; ``memory`` says what memory_mib counts, ``chosen`` is what `Auto` would use."""

    fastest: str
    device: str
    batch: int
    steps: int
    memory: str
    strategies: tuple[Timed, ...]
    chosen: str = ""


def time_strategies(
    opened: Opened,
    *,
    batch: int | None = None,
    device: str = "cpu",
    repeats: int = 3,
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Report:
    """Measure every strategy on a batch of the model's task, and say which one `Auto` would use.

    ``log`` gets a line before each strategy: one that has to be compiled takes minutes.
    """
    x = tree_map(lambda t: t.to(device), opened.batch(batch, **options))
    assert opened.model is not None
    # Dropout would make gradients of two strategies incomparable.
    model = opened.model.to(device).eval().requires_grad_(True)
    own = model.minimizer
    observer = _Observer(repeats, log)
    minimizer = spen.Minimizer(own.domain, own.rule, observer, own.stop)
    start = spen.SPEN(features=model.features, init=model.init, energy=model.energy, minimizer=minimizer)(x).start
    on_gpu = start.device.type == "cuda"
    assert observer.report is not None
    chosen, timed = observer.report
    fastest = min((t for t in timed if t.milliseconds is not None), key=lambda t: t.milliseconds or 0.0)
    return Report(
        fastest=fastest.strategy,
        chosen=chosen,
        device=torch.cuda.get_device_name(start.device) if on_gpu else "cpu",
        batch=start.shape[0],
        steps=own.rule.steps,
        memory="peak" if on_gpu else "kept for the backward pass",
        strategies=timed,
    )


def _strategies() -> list[GradientStrategy]:
    plain: list[GradientStrategy] = [Exact(), Checkpointed(), ForwardOverReverse(), FiniteDifference()]
    programs = [Compiled(t, keep=k, patience=0) for t in (ForwardOverReverse(), Checkpointed()) for k in (0.0, 1.0)]
    return [*plain, *programs]


class _Observer(GradientStrategy):
    """A strategy that times the others, on the loop, the energy and the start that it gets."""

    def __init__(self, repeats: int, log: Callable[[str], None]) -> None:
        self.repeats, self.log = repeats, log
        self.report: tuple[str, tuple[Timed, ...]] | None = None

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        auto = Auto(patience=0, measure=False)
        path = auto.run(descend, potential, start)  # first, so that an error of the energy is raised unchanged
        reference: list[Tensor] | None = None
        timed = []
        strategies = _strategies()
        for number, strategy in enumerate(strategies, 1):
            self.log(f"timing {strategy} ({number} of {len(strategies)})")
            try:
                warm_up = 4 if isinstance(strategy, Compiled) else 1  # a CUDA graph is captured in the third descent
                found = [training_step(strategy, descend, potential, start) for _ in range(warm_up)][-1]
            except Exception as failure:  # it cannot be used with this energy: the row says why
                timed.append(Timed(str(strategy), None, None, None, sentence(failure)))
                continue
            reference = found if reference is None else reference
            error = None if reference is found else distance(found, reference)
            count = _peak_bytes if start.device.type == "cuda" else _kept_bytes
            seconds = min(_seconds(strategy, descend, potential, start) for _ in range(self.repeats))
            held = count(strategy, descend, potential, start) / 2**20
            timed.append(Timed(str(strategy), 1000 * seconds, held, error, None))
        self.report = auto.choices()[0]["strategy"], tuple(timed)
        return path


def _seconds(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    clock = Clock()
    clock.tick(start.device)
    training_step(strategy, descend, potential, start)
    clock.tick(start.device)
    return clock.latest


def _forward(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> Tensor:
    with torch.enable_grad():
        path = strategy.run(descend, potential.detached(), start.detach().requires_grad_())
        outputs = path.outputs
        return sum((y.square().sum() for y in outputs[1:]), outputs[0].square().sum())


def _peak_bytes(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    torch.cuda.synchronize(start.device)
    before = torch.cuda.memory_allocated(start.device)
    torch.cuda.reset_peak_memory_stats(start.device)
    total = _forward(strategy, descend, potential, start)
    torch.autograd.grad(total, potential.parameters(), allow_unused=True)
    torch.cuda.synchronize(start.device)
    return float(torch.cuda.max_memory_allocated(start.device) - before)


def _kept_bytes(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    """Bytes of the distinct tensors that the forward pass leaves for the backward pass, parameters not counted."""
    own = {p.untyped_storage().data_ptr() for p in potential.energy.parameters()}
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        holder = _Kept(tensor)
        kept.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        total = _forward(strategy, descend, potential, start)
    # The graphs of single gradients are freed by now, and the tensors that they had saved.
    storages = [holder.tensor.untyped_storage() for holder in kept]
    sizes = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}
    del total
    return float(sum(sizes.values()))


class _Kept:
    """A saved tensor, in something that a weak reference can point to."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
