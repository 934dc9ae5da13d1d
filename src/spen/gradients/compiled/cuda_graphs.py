"""A whole descent and its backward pass as two CUDA graphs: one launch each, whatever the number of kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.replay import Tape, replayed_by
from spen.tensors import tensors_of, tree_map

if TYPE_CHECKING:
    from spen.gradients.compiled.strategy import Ready

Pattern = tuple[bool, ...]  # which outputs of the descent get a cotangent


class Captured:
    """Static memory, a graph that fills it with a descent, and a graph that pulls cotangents back through it.

    A replay overwrites what the one before left, so a descent whose backward pass is still to come holds a *lease*;
    ``free`` is False meanwhile. A backward pass that comes after its lease has been lost takes the steps again.
    """

    saved: list[Tensor]
    results: list[Tensor]
    extras: list[Tensor]
    bars: tuple[Tensor | None, ...]

    def __init__(self, tape: Tape, start: Tensor, pattern: Pattern, addresses: tuple[int, ...]) -> None:
        self.addresses = addresses
        self.start = start.detach().clone()
        features = tree_map(lambda f: f.detach().clone().requires_grad_(f.requires_grad), tape.potential.features)
        # The program has the energy in it; holding the module would keep it alive for as long as its own programs.
        cut = replace(tape.potential, features=features, energy=nn.Identity())
        self.tape = replace(tape, potential=cut, checked=False)  # descents before the capture were checked
        self.leaves = tensors_of(features)
        self.pattern = pattern
        self.lease = 0
        self.free = True
        with torch.no_grad():
            self._capture()

    def _capture(self) -> None:
        """Capture both graphs, after what they hold has run twice."""
        self._rehearse()
        # The two graphs are replayed in turns and may share their working memory. Those of another descent may not:
        # its backward pass could write where this one keeps its iterates.
        pool, device = torch.cuda.graph_pool_handle(), self.start.device
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _capturing(self.forward, pool, device):
            self._record()
        self.cotangents = self._wanted(torch.zeros_like)
        with _capturing(self.backward, pool, device):
            self.bars = self._pulled_back(self.saved, self.cotangents)

    def _forget(self) -> None:
        """Free everything that a descent and its backward pass have left in memory."""
        self.saved, self.results, self.extras, self.bars = [], [], [], ()
        self.tape.path, self.tape.steps = Iterates(), []

    def _record(self) -> None:
        self.saved = self.tape.record(self.start)
        path = self.tape.path
        self.results = [*path.outputs, *path.gradients]
        self.extras = [*path.energies, path.steps_used, path.converged]

    def _wanted(self, make: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """A cotangent for each result that the loss uses."""
        return [make(r) if p else None for r, p in zip(self.results, self.pattern, strict=True)]

    def _rehearse(self) -> None:
        """Run what will be captured, twice.

        cuDNN remembers the best algorithms for each thread, and this one may not have run the backward pass yet: a
        search during capture would break it. What waits for the device would break it too, and is found here.
        """
        device, stream = self.start.device, torch.cuda.Stream(self.start.device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._run_once()
            with _no_synchronisation():
                self._run_once()
        torch.cuda.current_stream(device).wait_stream(stream)

    def _run_once(self) -> None:
        """The descent and its backward pass; all results are freed."""
        self._record()
        self._pulled_back(self.saved, self._wanted(torch.ones_like))
        self._forget()

    def _pulled_back(self, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        # Autograd ties a parameter to the stream where it was first used, which a capture must not wait for:
        # differentiate with respect to aliases of the same memory that this stream has made.
        parts = nn.ModuleDict({"rule": self.tape.descend.rule, "domain": self.tape.descend.domain})
        aliases = {n: p.detach().requires_grad_(p.requires_grad) for n, p in parts.named_parameters()}
        self.tape.learned = [p for p in aliases.values() if p.requires_grad]
        # A copy of the list: a second backward pass through the same memory finds everything where it was.
        return _with_tensors(parts, aliases, lambda: self.tape.pull_back(list(saved), cotangents))

    def descend(self, start: Tensor, leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Replay the descent from ``start``: copies of its outputs, and of what else a path holds."""
        _copy([self.start, *self.leaves], [start, *leaves])
        self.forward.replay()
        fresh = _copies([*self.results, *self.extras])
        return fresh[: len(self.results)], fresh[len(self.results) :]

    def pull_back(self, cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        given = [(mine, c) for mine, c in zip(self.cotangents, cotangents, strict=True) if mine is not None]
        _copy([mine for mine, _ in given], [c for _, c in given])  # type: ignore[misc]
        self.backward.replay()
        fresh = iter(_copies([b for b in self.bars if b is not None]))
        return tuple(None if b is None else next(fresh) for b in self.bars)

    def path(self, extras: list[Tensor]) -> Iterates:
        *energies, steps_used, converged = extras
        return Iterates(energies=energies, steps_used=steps_used, converged=converged)


class Prediction:
    """Static memory and a graph that fills it with a descent that is not differentiated."""

    def __init__(self, descend: Descend, ready: Ready, start: Tensor) -> None:
        self.addresses = ready.addresses
        self.start = start.detach().clone()
        features = tree_map(lambda f: f.detach().clone(), ready.cut.features)
        self.leaves = tensors_of(features)
        cut = replace(ready.cut, features=features, energy=nn.Identity())
        self.graph, device = torch.cuda.CUDAGraph(), start.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), _no_synchronisation():
            descend(cut, self.start, ready.bound.gradient)
        torch.cuda.current_stream(device).wait_stream(stream)
        with _capturing(self.graph, torch.cuda.graph_pool_handle(), device):
            path = descend(cut, self.start, ready.bound.gradient)
        self.outputs = [*path.outputs, *path.gradients]
        self.extras = [*path.energies, path.steps_used, path.converged]
        self.taken = len(path.outputs)

    def run(self, start: Tensor, potential: Potential) -> Iterates:
        """Replay the descent from ``start``, with these features."""
        _copy([self.start, *self.leaves], [start.detach(), *(f.detach() for f in tensors_of(potential.features))])
        self.graph.replay()
        fresh = _copies([*self.outputs, *self.extras])
        *energies, steps_used, converged = fresh[len(self.outputs) :]
        outputs, gradients = fresh[: self.taken], fresh[self.taken : len(self.outputs)]
        return Iterates(outputs, energies, gradients, steps_used, converged)


class NotCapturable(RuntimeError):
    """A CUDA graph cannot hold the descent: it synchronises with the host, say, or memory is short."""


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    """Capture what runs within. A capture that fails leaves torch's generator and allocator as if it still went on,
    so both are put back before NotCapturable is raised."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    before = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    except RuntimeError as error:
        generator.graphsafe_set_state(before)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, pool)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotCapturable(f"the descent cannot be captured: {reason[:200]}") from error


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """Raise NotCapturable at the end if the host has waited for the device within."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    if any("synchronizing CUDA operation" in str(warning.message) for warning in caught):
        raise NotCapturable("the descent waits for the device, which a CUDA graph cannot")


class GraphReplay(torch.autograd.Function):
    """``replay`` by graphs. Inputs and outputs as there; the captured memory never leaves this file."""

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, captured: Captured, tape: Tape, start: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        results, extras = captured.descend(start.detach(), [f.detach() for f in tensors_of(tape.potential.features)])
        tape.path = captured.path(extras)
        captured.lease += 1
        captured.free = False
        ctx.recorder, ctx.captured, ctx.tape, ctx.lease = recorder, captured, tape, _Lease(captured)
        ctx.save_for_backward(start, *inputs)  # autograd raises if they have been changed
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        captured: Captured = ctx.captured
        start, *_ = ctx.saved_tensors
        ctx.tape.check(cotangents)
        ctx.tape.held.require_unchanged()
        if ctx.lease.number == captured.lease and captured.pattern == pattern_of(cotangents):
            bars = captured.pull_back(cotangents)
            captured.free = True
        else:
            ctx.lease.give_up()
            ctx.recorder.look_at(pattern_of(cotangents))
            with torch.no_grad(), ctx.tape.held.put_back():
                saved = ctx.tape.record(start.detach())
                bars = ctx.tape.pull_back(saved, cotangents)
        return (None, None, None, *bars)


class _Lease:
    """Holds captured memory for one descent; returned when the descent is forgotten without a backward pass."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.number = captured, captured.lease

    def give_up(self) -> None:
        if self.captured.lease == self.number:
            self.captured.free = True

    def __del__(self) -> None:
        self.give_up()


class Recorder:
    """Watches a program's first descents, then captures it; falls back to plain replay whenever a graph cannot serve.

    The first ``warmup`` descents run without graphs: kernels are chosen and compiled, and the pattern of cotangents
    is seen. A loss that sends something to other outputs than before gets graphs of its own.
    """

    def __init__(self, *, keep: float = 0.0, warmup: int = 2, at_once: int = 4) -> None:
        self.keep = keep
        self.warmup, self.at_once = warmup, at_once
        self.seen: Pattern | None = None
        self.changes = 0
        self.calls = 0
        self.captured: list[Captured] = []
        self.predictions: list[Prediction] = []

    def run(self, descend: Descend, potential: Potential, ready: Ready, start: Tensor) -> Iterates:
        tape = ready.tape(descend, self.keep)
        self.calls += 1
        captured = None
        if self.calls > self.warmup and self.seen is not None:
            captured = self._ready(tape, start, ready.addresses)
        if captured is None:
            check = tape.check

            def watch(cotangents: Sequence[Tensor | None]) -> None:
                check(cotangents)
                self.look_at(pattern_of(cotangents))

            tape.check = watch
            return replayed_by(tape, potential, start)
        inputs = [*potential.feature_tensors(), *potential.parameters(), *tape.learned]
        results = GraphReplay.apply(self, captured, tape, start, *inputs)
        return tape.path_of(results, descend.rule.steps)

    def predict(self, descend: Descend, ready: Ready, start: Tensor) -> Iterates:
        """The descent without a backward pass, from the second time on as one graph."""
        self.calls += 1
        found = next((p for p in self.predictions if p.addresses == ready.addresses), None)
        if found is None and self.calls > 1 and self.at_once:
            try:
                found = Prediction(descend, ready, start)
                self.predictions = [*self.predictions[1 - self.at_once :], found]
            except NotCapturable:
                self._give_up()
        if found is not None:
            return found.run(start, ready.cut)
        return descend(ready.cut, start, ready.bound.gradient)

    def look_at(self, pattern: Pattern) -> None:
        """Record the outputs that a loss uses. If they change again and again, a capture each time does not pay."""
        self.changes += pattern != self.seen
        self.seen = pattern
        if self.changes > 4:
            self._give_up()

    def _give_up(self) -> None:
        """No more graphs."""
        self.at_once, self.captured, self.predictions = 0, [], []

    def _ready(self, tape: Tape, start: Tensor, addresses: tuple[int, ...]) -> Captured | None:
        for captured in self.captured:
            # The graph reads parameters where they were: elsewhere, under functional_call say, it cannot serve.
            if captured.free and captured.pattern == self.seen and captured.addresses == addresses:
                return captured
        # The loss may ask for other iterates than before: graphs that do not serve it any more make room.
        self.captured = [c for c in self.captured if not c.free]
        # A graph would draw new random numbers in the backward pass.
        if len(self.captured) >= self.at_once or self.seen is None or tape.potential.draws:
            return None
        try:
            self.captured.append(Captured(tape, start, self.seen, addresses))
        except NotCapturable:
            self._give_up()
            return None
        return self.captured[-1]


class _Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def _with_tensors(module: nn.Module, tensors: Mapping[str, Tensor], function: Callable[[], Any]) -> Any:
    """function(), with ``tensors`` in the place of the parameters and buffers they are named after."""
    return functional_call(_Holder(module), {f"module.{n}": t for n, t in tensors.items()}, (function,))


def pattern_of(cotangents: Sequence[Tensor | None]) -> Pattern:
    """Which of them are there."""
    return tuple(c is not None for c in cotangents)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    fresh = [torch.empty_like(t) for t in tensors]
    _copy(fresh, tensors)
    return fresh
