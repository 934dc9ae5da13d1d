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
from benchmarks.measure import measure
from spen.descent.compiled import graphs
from spen.descent.compiled.graphs import Captured, NotCapturable, Recorder
from spen.descent.compiled.trace import Bound
from spen.descent.gradients.replay import Tape
from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.domains import Reals, Simplex
from spen.energies import Linear, Scaled
from spen.gradients import Compiled, Exact, ForwardOverReverse
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum
from spen.tasks.denoising.priors import DeepPrior
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
        monkeypatch.setattr(graphs, "Captured", StandIn)
    return str(request.param)


def compiled() -> Compiled:
    return Compiled(patience=0, fuse=False, graphs=True)


def recorder_of(model: spen.SPEN) -> Recorder:
    strategy = model.minimizer.gradient
    assert isinstance(strategy, Compiled)
    (slot,) = strategy._slots[model.energy].values()
    (recorder,) = slot.recorders.values()
    return recorder


@pytest.mark.parametrize("stopping", [False, True])
def test_captured_descents_agree_with_exact(stopping: bool, device: str) -> None:
    for domain in (Reals(), Simplex("logits"), Simplex("through_logits")):
        for rule in all_rules():
            stop = dividing_stop(domain, rule) if stopping else None
            objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
            model, x, target = example_model(domain, rule, compiled(), stop, keep_gradients=True)
            model, x, target = model.to(device), x.to(device), target.to(device)
            for scale in (1.0, 1.0, 1.0, 0.7, 1.3):
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

    monkeypatch.setattr(graphs, "Captured", Failing)
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
        monkeypatch.setattr("spen.descent.compiled.graphs._nobody_waits", nullcontext)
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


@on_gpu
def test_graphs_hold_no_more_than_either_way_to_lay_out_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.rand(32, 1, 96, 128, device="cuda")

    def most(energy: torch.nn.Module) -> float:
        minimizer = spen.Minimizer(Reals(), Momentum(4, 0.02), compiled()).cuda()

        def step() -> list[Tensor]:
            total = sum(y.square().mean() for y in minimizer(energy, x, torch.zeros_like(x)).outputs)
            return list(torch.autograd.grad(total, list(energy.parameters()), allow_unused=True))  # type: ignore[arg-type]

        return measure(lambda: step, x.device, seconds=0.1, repeats=3).peak_bytes

    def always(energy: torch.nn.Module, block: Callable[[int], int]) -> float:
        def capture(captured: Captured) -> None:
            captured._capture_in(block(captured._rehearse()))

        with monkeypatch.context() as patch:
            patch.setattr(Captured, "_capture", capture)
            return most(energy)

    for width, size in [(16, 5), (32, 7)]:
        energy = Scaled(DeepPrior(width, size), 0.1).cuda()
        assert most(energy) <= 1.01 * min(always(energy, lambda needed: 0), always(energy, graphs.with_room))


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
        with graphs._capturing(*where):
            pass
        assert (generator.states, ended) == ([], [])
        return
    words = "the descent cannot be captured: operation not permitted when stream is capturing$"
    with pytest.raises(NotCapturable, match=words), graphs._capturing(*where):
        pass
    assert (generator.states, ended) == (["as it was"], [(1, "pool")])


def two_steps() -> tuple[Tape, Tensor, tuple[bool, bool], tuple[int, ...]]:
    """A descent to capture: its tape, where it starts, that the loss looks at both iterates, no other tensors."""
    potential, start = Potential.of(Linear(), torch.ones(3, 4)), torch.zeros(3, 4)
    bound = Bound.of(potential, start, ForwardOverReverse().product, lambda program, _: program)
    tape = Tape(Descend(Reals(), Momentum(2, 0.1)), potential, bound.product, None, bound.gradient)
    return tape, start, (True, True), ()


@pytest.mark.parametrize(
    ("pieces", "one_block", "tried"),
    [
        (90, 0, ["pieces"]),
        (200, 110, ["pieces", "block"]),
        (200, 210, ["pieces", "block", "pieces"]),
        (None, 110, ["pieces", "block"]),
    ],
)
def test_memory_is_laid_out_the_way_that_takes_less(pieces: int | None, one_block: int, tried: list[str]) -> None:
    mib, order = 2**20, list[str]()

    class Counts(StandIn):
        def _capture(self) -> None:
            Captured._capture(self)

        def _rehearse(self) -> int:
            return 96 * mib

        def _capture_in(self, block: int) -> int:
            assert block in (0, 106 * mib)
            order.append("block" if block else "pieces")
            StandIn._capture(self)
            size = one_block if block else pieces
            if size is None:
                raise NotCapturable("the descent cannot be captured: CUDA out of memory")
            return mib * size

    Counts(*two_steps())
    assert order == tried


def test_a_rehearsal_leaves_nothing_and_uses_the_cotangents_it_is_given() -> None:
    captured = StandIn(*two_steps())
    ones = captured._rehearsal(None)
    assert [bool((one == 1).all()) for one in ones if one is not None] == [True, True]
    assert captured._rehearsal(ones) is ones
    assert (captured.saved, captured.results, captured.extras, captured.bars) == ([], [], [], ())
    assert (captured.tape.path.outputs, captured.tape.steps) == ([], [])


def test_the_memory_of_a_capture_is_counted_by_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [((0, 0), 5), ((0, 2), 7), ((0, 2), 11)]
    segments = [{"segment_pool_id": pool, "total_size": size} for pool, size in known]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert graphs._size((0, 2)) == 18


def test_what_waits_for_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with graphs._nobody_waits():
        warnings.warn("something else", stacklevel=1)
    waits = pytest.raises(NotCapturable, match="the descent waits for the device, which a CUDA graph cannot")
    with waits, graphs._nobody_waits():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    assert modes == ["warn", 0, "warn", 0]
