"""Whole descents as CUDA graphs: the same gradients, by value, whatever happens between forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import spen
from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.domains import Reals, Simplex
from spen.energies import Linear
from spen.gradients import Compiled, Exact, ForwardOverReverse
from spen.gradients.compiled import cuda_graphs
from spen.gradients.compiled.cuda_graphs import Captured, NotCapturable, Recorder
from spen.gradients.compiled.program import Bound
from spen.gradients.replay import Tape
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum
from spen.testing.strategy import all_rules, dividing_stop, example_model, gradients_of

on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="captures real CUDA graphs, and this machine has no GPU; stand-ins test the same bookkeeping on the CPU",
)


class Replays:
    """What stands in for a graph on a CPU: a call that writes into the same memory every time."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


class StandIn(Captured):
    """Static memory and leases as on a GPU, filled by running the tape instead of replaying it."""

    def _capture(self) -> None:
        self.forward, self.backward = Replays(self._again), Replays(self._back)  # type: ignore[assignment]
        self._record()
        self.cotangents = self._wanted(torch.zeros_like)
        self.bars = self._pulled_back(self.saved, self.cotangents)

    @torch.no_grad()
    def _again(self) -> None:
        before = [*self.saved, *self.results, *self.extras]
        self._record()
        written = [*self.saved, *self.results, *self.extras]
        for memory, value in zip(before, written, strict=True):
            memory.copy_(value)
        saved, results = len(self.saved), len(self.results)
        self.saved = before[:saved]
        self.results, self.extras = before[saved : saved + results], before[saved + results :]

    @torch.no_grad()
    def _back(self) -> None:
        for memory, value in zip(self.bars, self._pulled_back(self.saved, self.cotangents), strict=True):
            if memory is not None and value is not None:
                memory.copy_(value)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=on_gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        monkeypatch.setattr(cuda_graphs, "Captured", StandIn)
    return str(request.param)


def compiled() -> Compiled:
    return Compiled(patience=0, fuse=False, graphs=True)


def recorder_of(model: spen.SPEN) -> Recorder:
    strategy = model.minimizer.gradient
    assert isinstance(strategy, Compiled)
    (slot,) = strategy._slots[model.energy].values()
    (recorder,) = slot.recorders.values()
    return recorder


def test_captured_descents_agree_with_exact(device: str) -> None:
    domains, stops = (Reals(), Simplex("logits"), Simplex("through_logits")), (False, True, True)
    for domain, rule, stopping in zip(domains, all_rules(), stops, strict=True):
        stop = dividing_stop(domain, rule) if stopping else None
        objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
        model, x, target = example_model(domain, rule, compiled(), stop, keep_gradients=True)
        model, x, target = model.to(device), x.to(device), target.to(device)
        for scale in (1.0, 1.0, 0.7, 1.3):
            found = gradients_of(model, scale * x, target, objective)
            model.minimizer.gradient, kept = Exact(), model.minimizer.gradient
            exact = gradients_of(model, scale * x, target, objective)
            model.minimizer.gradient = kept
            for name, value in exact.items():
                torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)
        assert len(recorder_of(model).captured) == 1


def test_two_descents_before_their_backward_passes(device: str) -> None:
    model, x, target = example_model(Reals(), all_rules()[1], compiled())
    model, x, target = model.to(device), x.to(device), target.to(device)
    objective = EndToEnd(squared_error)
    for _ in range(4):
        objective(model, x, target).backward()
    model.zero_grad()
    losses = [objective(model, s * x, target) for s in (0.5, 1.0, 1.5)]
    for loss in losses:
        loss.backward(retain_graph=True)
    assert len(recorder_of(model).captured) == 3
    losses[1].backward(retain_graph=True)  # its memory is as it was
    for _ in range(3):
        model(2 * x)
    losses[0].backward()  # its memory is another's by now: the steps are taken again
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.minimizer.gradient = Exact()
    model.zero_grad()
    for s in (0.5, 1.0, 1.5, 1.0, 0.5):
        objective(model, s * x, target).backward()
    for a, b in zip(found, [p.grad for p in model.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_loss_on_other_iterates_is_not_served_by_the_old_graph(device: str) -> None:
    model, x, target = example_model(Reals(), all_rules()[1], compiled())
    model, x, target = model.to(device), x.to(device), target.to(device)
    for _ in range(4):
        EndToEnd(squared_error)(model, x, target).backward()
    for _ in range(2):  # the first takes the steps again, the second has a graph of its own
        found = gradients_of(model, x, target, EndToEnd(squared_error, weights="last"))
    assert [sum(c.pattern) for c in recorder_of(model).captured] == [1]
    model.minimizer.gradient = Exact()
    exact = gradients_of(model, x, target, EndToEnd(squared_error, weights="last"))
    for name, value in exact.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


def test_losses_that_take_turns_run_without_a_graph(device: str) -> None:
    model, x, target = example_model(Reals(), all_rules()[1], compiled())
    model, x, target = model.to(device), x.to(device), target.to(device)
    objectives = [EndToEnd(squared_error), EndToEnd(squared_error, weights="last")]
    for _ in range(4):
        found = [gradients_of(model, x, target, objective) for objective in objectives]
    recorder = recorder_of(model)
    assert (recorder.at_once, recorder.captured) == (0, [])
    model.minimizer.gradient = Exact()
    for objective, gradients in zip(objectives, found, strict=True):
        for name, value in gradients_of(model, x, target, objective).items():
            torch.testing.assert_close(gradients[name], value, rtol=1e-8, atol=1e-8)


def test_a_failed_capture_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[StandIn] = []

    class Failing(StandIn):
        def _capture(self) -> None:
            tried.append(self)
            raise NotCapturable("no memory")

    monkeypatch.setattr(cuda_graphs, "Captured", Failing)
    model, x, target = example_model(Reals(), all_rules()[1], compiled())
    for _ in range(5):
        found = gradients_of(model, x, target, EndToEnd(squared_error))
    assert (len(tried), recorder_of(model).captured) == (1, [])
    model.minimizer.gradient = Exact()
    for name, value in gradients_of(model, x, target, EndToEnd(squared_error)).items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


class Looking(GradientDescent):
    """A rule that lets the host look at the gradient, as a line search would."""

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        scale = 1.0 if float(gradient.detach().abs().max()) < 1e9 else 0.0
        return super().update(t, z, scale * gradient, state)


@on_gpu
@pytest.mark.parametrize("found_out", ["in the rehearsal", "by the capture"])
def test_a_descent_that_cannot_be_captured_runs_without_a_graph(
    found_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found_out == "by the capture":
        monkeypatch.setattr("spen.gradients.compiled.cuda_graphs._no_synchronisation", nullcontext)
    model, x, target = example_model(Reals(), Looking(3, 0.1), compiled())
    model, x, target = model.cuda(), x.cuda(), target.cuda()
    for _ in range(5):
        found = gradients_of(model, x, target, EndToEnd(squared_error))
    strategy = model.minimizer.gradient
    assert isinstance(strategy, Compiled)
    (slot,), model.minimizer.gradient = strategy._slots[model.energy].values(), Exact()
    for name, value in gradients_of(model, x, target, EndToEnd(squared_error)).items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)
    assert not slot.recorders  # what the rule reads cannot be guarded, so nothing is captured
    assert torch.rand(3, device="cuda").shape == (3,)  # the generator is not left within a capture
    other, x, target = example_model(Reals(), all_rules()[1], compiled())
    other, x, target = other.cuda(), x.cuda(), target.cuda()
    for _ in range(4):
        gradients_of(other, x, target, EndToEnd(squared_error))
    assert len(recorder_of(other).captured) == 1


# ── what surrounds a capture, without a GPU ──


class Generator:
    """Stands in for torch's generator on a GPU."""

    def __init__(self) -> None:
        self.states: list[object] = []

    def clone_state(self) -> str:
        return "as it was"

    def graphsafe_set_state(self, state: object) -> None:
        self.states.append(state)


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_capture_puts_generator_and_allocator_back(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, ended = Generator(), list[object]()

    @contextmanager
    def graph(given: object, pool: object) -> Iterator[None]:
        yield
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: ended.append(given), raising=False)
    where: Any = (object(), "pool", torch.device("cuda", 1))
    if not fails:
        with cuda_graphs._capturing(*where):
            pass
        assert (generator.states, ended) == ([], [])
        return
    words = "the descent cannot be captured: operation not permitted when stream is capturing$"
    with pytest.raises(NotCapturable, match=words), cuda_graphs._capturing(*where):
        pass
    assert (generator.states, ended) == (["as it was"], [(1, "pool")])


def two_steps() -> tuple[Tape, Tensor, tuple[bool, bool], tuple[int, ...]]:
    """A descent to capture: its tape, where it starts, that the loss looks at both iterates, no other tensors."""
    potential, start = Potential.of(Linear(), torch.ones(3, 4)), torch.zeros(3, 4)
    bound = Bound.of(potential, start, ForwardOverReverse().product, lambda program, _: program)
    tape = Tape(Descend(Reals(), Momentum(2, 0.1)), potential, bound.product, None, bound.gradient)
    return tape, start, (True, True), ()


def test_a_rehearsal_leaves_nothing() -> None:
    captured = StandIn(*two_steps())
    captured._run_once()
    assert (captured.saved, captured.results, captured.extras, captured.bars) == ([], [], [], ())
    assert (captured.tape.path.outputs, captured.tape.steps) == ([], [])


def test_what_waits_for_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with cuda_graphs._no_synchronisation():
        warnings.warn("something else", stacklevel=1)
    waits = pytest.raises(NotCapturable, match="the descent waits for the device, which a CUDA graph cannot")
    with waits, cuda_graphs._no_synchronisation():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    assert modes == ["warn", 0, "warn", 0]
