"""What a training step keeps and how often it asks the energy (Sec. 4.3)."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Scaled
from spen.gradients import (
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Implicit,
)
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.tasks.denoising.energy import DeepPrior, Observation
from spen.testing.problems import Quadratic
from tests.contracts.test_strategies import STRATEGIES
from tests.helpers import Counting, denoiser, saved_for_backward


@functools.cache
def saved_bytes(gradient: GradientStrategy, steps: int = 20) -> int:
    image = torch.rand(2, 1, 12, 16)
    model, x = denoiser(DeepPrior(), steps, gradient), Observation(image, torch.ones_like(image))
    for _ in range(2 if isinstance(gradient, Compiled) else 1):  # a program is made on the first batch
        with saved_for_backward() as saved:
            loss = EndToEnd(squared_error)(model, x, torch.zeros_like(image))
        total = saved.bytes
        del loss
    return total


EXACT = Exact()
EVERYONE = [EXACT, Implicit(), Compiled(keep=True, patience=0), *(strategy for strategy, _ in STRATEGIES)]


@pytest.mark.parametrize("strategy", EVERYONE, ids=str)
def test_a_step_leaves_nothing_behind(strategy: GradientStrategy) -> None:
    """The iterates go when the loss goes, not when Python next looks for cycles: on a GPU that may be too late."""
    torch.manual_seed(0)
    rule, stop = GradientDescent(30, 0.5), spen.RelativeChange(1e-6)
    minimizer = spen.Minimizer(Reals(), rule, strategy, stop if isinstance(strategy, Implicit) else None)
    energy = Scaled(Quadratic(torch.eye(3)), 1.0, learned=True).double()
    x = torch.randn(2, 3, dtype=torch.float64)

    def step() -> list[weakref.ref[Tensor]]:
        outputs = minimizer(energy, x, torch.zeros_like(x)).outputs
        outputs[-1].square().sum().backward()  # type: ignore[no-untyped-call]
        return [weakref.ref(y) for y in outputs]

    step()
    gc.disable()
    try:
        assert not any(y() is not None for y in step())
    finally:
        gc.enable()


@pytest.mark.parametrize("strategy", [Checkpointed(), FiniteDifference(), ForwardOverReverse()], ids=str)
def test_saved_memory_of_the_deep_prior(strategy: GradientStrategy) -> None:
    """At T = 20 at most 1/25 of Exact's, and one more step costs one iterate and one state, no more.

    The loss itself keeps y_t − y* for every iterate, whatever the strategy: one iterate more per step.
    """
    iterate = 2 * 12 * 16 * 4
    assert saved_bytes(strategy) <= saved_bytes(EXACT) / 25
    growth = (saved_bytes(strategy, 24) - saved_bytes(strategy)) / 4
    losses = iterate
    assert growth <= 2 * iterate + losses + 64


def test_saved_memory_of_cached_results() -> None:
    """At T = 20 about 1/4 of Exact's: two results of 32 channels a step. A share of the steps keeps a share of it."""
    results = 2 * 32 * 12 * 16 * 4 * 2
    everything, exact = saved_bytes(Compiled(keep=True, patience=0)), saved_bytes(EXACT)
    assert everything <= 0.26 * exact
    lean = saved_bytes(Compiled(patience=0))
    assert everything == lean + 20 * results
    most = saved_bytes(Compiled(keep=0.75, patience=0))
    assert most == lean + 15 * results
    assert most <= exact / 5


def _counted(gradient: GradientStrategy, stop: spen.RelativeChange | None = None) -> tuple[spen.SPEN, Counting]:
    counting = Counting(Quadratic(torch.diag(torch.tensor([1.0, 2.0, 3.0]))))
    minimizer = spen.Minimizer(Reals(), GradientDescent(8, 0.2, learn_rates=True), gradient, stop)
    return spen.SPEN(energy=counting, init=nn.Linear(3, 3), minimizer=minimizer), counting


@pytest.mark.parametrize(
    ("strategy", "backward"),
    [
        (Checkpointed(), [5] * 8),
        (ForwardOverReverse(), [5] * 8),
        (FiniteDifference(), [10] * 8),
        (FiniteDifference(doubled=False), [5] * 16),
        (Exact(), []),
    ],
    ids=str,
)
def test_evaluations_are_counted(strategy: GradientStrategy, backward: list[int]) -> None:
    """T forward; backward T replays, T doubled batches or 2T single ones, and none for Exact.

    Forward mode is compared with double backprop on two examples.
    """
    model, counting = _counted(strategy)
    x = torch.randn(5, 3)
    EndToEnd(squared_error)(model, x, torch.zeros(5, 3)).backward()  # the first call may probe the second derivative
    counting.rows.clear()
    loss = EndToEnd(squared_error)(model, x, torch.zeros(5, 3))
    compared = [2, 2] if isinstance(strategy, ForwardOverReverse) else []
    assert counting.rows == [5, *compared, *[5] * 7]
    counting.rows.clear()
    loss.backward()
    assert counting.rows == backward


def test_prediction_takes_one_evaluation_a_step() -> None:
    model, counting = _counted(Checkpointed())
    with torch.no_grad():
        model(torch.randn(5, 3))
    assert counting.rows == [5] * 8


@pytest.mark.parametrize(("strategy", "factor"), [(Checkpointed(), 1), (FiniteDifference(), 2)], ids=str)
def test_early_stopping_shows_in_the_counts(strategy: GradientStrategy, factor: int) -> None:
    """An example that starts at its minimum leaves after one step; the others go on without it."""
    model, counting = _counted(strategy, spen.RelativeChange(1e-6))
    x = torch.randn(4, 3)

    class Start(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            offset = torch.tensor([0.0, 1.0, 0.0, 2.0])[:, None]
            return features + offset

    model.init = Start()
    loss = EndToEnd(squared_error)(model, x.requires_grad_(), torch.zeros(4, 3))
    assert counting.rows == [4] + [2] * 7
    counting.rows.clear()
    loss.backward()
    assert counting.rows == [2 * factor] * 7 + [4 * factor]
    trajectory = model(x)
    assert trajectory.steps_used.tolist() == [1, 8, 1, 8]
    assert trajectory.converged.tolist() == [True, False, True, False]


def test_the_loop_ends_when_all_have_arrived() -> None:
    model, counting = _counted(Checkpointed(), spen.RelativeChange(0.5))
    trajectory = model(torch.randn(4, 3))
    used = int(trajectory.steps_used.max())
    assert used < 8
    assert counting.calls == used
    assert len(trajectory.outputs) == 8
    assert all(y is trajectory.outputs[used - 1] for y in trajectory.outputs[used:])
