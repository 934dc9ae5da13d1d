"""Whole descents as CUDA graphs: the same gradients, by value, whatever happens between forward and backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import spen
from benchmarks.measure import measure
from spen.descent.compiled.graphs import Recorder
from spen.domains import Reals, Simplex
from spen.energies import Scaled
from spen.gradients import Compiled, Exact
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum
from spen.tasks.denoising.priors import DeepPrior
from spen.testing.strategy import all_rules, dividing_stop, example_model, gradients_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@pytest.mark.parametrize("stopping", [False, True])
def test_captured_descents_agree_with_exact(stopping: bool) -> None:
    for domain in (Reals(), Simplex("logits"), Simplex("through_logits")):
        for rule in all_rules():
            stop = dividing_stop(domain, rule) if stopping else None
            objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
            model, x, target = example_model(domain, rule, Compiled(patience=0, fuse=False), stop, keep_gradients=True)
            model, x, target = model.cuda(), x.cuda(), target.cuda()
            for scale in (1.0, 1.0, 1.0, 0.7, 1.3):
                found = gradients_of(model, scale * x, target, objective)
                model.minimizer.gradient, kept = Exact(), model.minimizer.gradient
                exact = gradients_of(model, scale * x, target, objective)
                model.minimizer.gradient = kept
                for name, value in exact.items():
                    torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


def test_two_descents_before_their_backward_passes() -> None:
    model, x, target = example_model(Reals(), all_rules()[1], Compiled(patience=0, fuse=False))
    model, x, target = model.cuda(), x.cuda(), target.cuda()
    objective = EndToEnd(squared_error)
    for _ in range(4):
        objective(model, x, target).backward()
    model.zero_grad()
    losses = [objective(model, s * x, target) for s in (0.5, 1.0, 1.5)]
    for loss in losses:
        loss.backward(retain_graph=True)
    losses[0].backward()  # its lease is lost: the steps are taken again
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.minimizer.gradient = Exact()
    model.zero_grad()
    for s in (0.5, 1.0, 1.5, 0.5):
        objective(model, s * x, target).backward()
    for a, b in zip(found, [p.grad for p in model.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_loss_on_other_iterates_is_not_served_by_the_old_graph() -> None:
    model, x, target = example_model(Reals(), all_rules()[1], Compiled(patience=0, fuse=False))
    model, x, target = model.cuda(), x.cuda(), target.cuda()
    for _ in range(4):
        EndToEnd(squared_error)(model, x, target).backward()
    found = gradients_of(model, x, target, EndToEnd(squared_error, weights="last"))
    model.minimizer.gradient = Exact()
    exact = gradients_of(model, x, target, EndToEnd(squared_error, weights="last"))
    for name, value in exact.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


class Looking(GradientDescent):
    """A rule that lets the host look at the gradient, as a line search would."""

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        scale = 1.0 if float(gradient.detach().abs().max()) < 1e9 else 0.0
        return super().update(t, z, scale * gradient, state)


@pytest.mark.parametrize("found_out", ["in the rehearsal", "by the capture"])
def test_a_descent_that_cannot_be_captured_runs_without_a_graph(
    found_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found_out == "by the capture":
        monkeypatch.setattr("spen.descent.compiled.graphs._nobody_waits", nullcontext)
    model, x, target = example_model(Reals(), Looking(3, 0.1), Compiled(patience=0, fuse=False))
    model, x, target = model.cuda(), x.cuda(), target.cuda()
    strategy = model.minimizer.gradient
    assert isinstance(strategy, Compiled)
    for _ in range(5):
        found = gradients_of(model, x, target, EndToEnd(squared_error))
    model.minimizer.gradient = Exact()
    for name, value in gradients_of(model, x, target, EndToEnd(squared_error)).items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)
    (recorder,) = strategy._programs[model.energy].values()
    assert isinstance(recorder, Recorder)
    assert recorder.captured == []
    assert torch.rand(3, device="cuda").shape == (3,)  # the generator is not left within a capture
    other, x, target = example_model(Reals(), all_rules()[1], Compiled(patience=0, fuse=False))
    other, x, target = other.cuda(), x.cuda(), target.cuda()
    for _ in range(4):
        gradients_of(other, x, target, EndToEnd(squared_error))
    (recorder,) = other.minimizer.gradient._programs[other.energy].values()  # type: ignore[attr-defined]
    assert len(recorder.captured) == 1


@pytest.mark.parametrize("rows", [None, 8])
def test_graphs_hold_little_more_than_a_descent_needs(rows: int | None) -> None:
    """Half as much again for gaps between blocks; without a block to begin with it was more than twice."""
    torch.manual_seed(0)
    energy, x = Scaled(DeepPrior(16, 5), 0.1).cuda(), torch.rand(32, 1, 128, 128, device="cuda")
    most = {}
    for graphs in (False, True):
        strategy = Compiled(rows=rows, patience=0, fuse=False, graphs=graphs)
        minimizer = spen.Minimizer(Reals(), Momentum(4, 0.02), strategy).cuda()

        def step(minimizer: spen.Minimizer = minimizer) -> list[Tensor]:
            total = sum(y.square().mean() for y in minimizer(energy, x, torch.zeros_like(x)).outputs)
            return list(torch.autograd.grad(total, list(energy.parameters()), allow_unused=True))  # type: ignore[arg-type]

        most[graphs] = measure(lambda step=step: step, x.device, seconds=0.1, repeats=3).peak_bytes  # type: ignore[misc]
    assert most[True] < 1.6 * most[False]
