"""Objectives by value."""

from __future__ import annotations

import copy
import itertools
import math
import types
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import spen
from benchmarks.counting import Operations
from spen.domains import Box, Reals
from spen.energies import Energy
from spen.gradients import Checkpointed, Exact
from spen.objectives import (
    ContrastiveDivergence,
    DeepValue,
    EndToEnd,
    Feedforward,
    Hamiltonian,
    LossAugmented,
    StructuredHinge,
    binary_log_loss,
    log_loss,
    squared_error,
)
from spen.protocols import Objective
from spen.rules import GradientDescent
from spen.tasks.multilabel import losses as labels
from spen.testing.strategy import all_rules, example_model, gradients_of


def test_an_objective_prints_the_call_that_makes_it() -> None:
    assert repr(EndToEnd(squared_error)) == "EndToEnd(loss=squared_error)"
    assert repr(EndToEnd(squared_error, weights=[1, 2])) == "EndToEnd(loss=squared_error, weights=[1.0, 2.0])"
    assert repr(EndToEnd(squared_error, change_penalty=0.5)) == "EndToEnd(loss=squared_error, change_penalty=0.5)"
    assert repr(DeepValue(squared_error, draw=["truth"])) == "DeepValue(value=squared_error, draw=('truth',))"
    sampled = ContrastiveDivergence(Hamiltonian(2, 0.1, leapfrog=3), margin=0.1)
    assert repr(sampled) == "ContrastiveDivergence(sampler=Hamiltonian(steps=2, leapfrog=3), margin=0.1)"


def test_an_objective_of_ones_own_prints_what_it_keeps() -> None:
    class Mine(Objective):
        def __init__(self, weight: float, hidden: int = 0) -> None:
            self.weight = weight

        def __call__(self, model: spen.SPEN, x: object, target: object) -> Tensor:
            return torch.zeros(())

    assert repr(Mine(2.0)) == "Mine(weight=2.0)"


def test_the_weights_of_the_iterates() -> None:
    assert EndToEnd(squared_error).iterate_weights(3) == pytest.approx([1 / 9, 1 / 6, 1 / 3])
    assert EndToEnd(squared_error, weights="last").iterate_weights(3) == [0, 0, 1]
    assert EndToEnd(squared_error, weights=[3, 0, 6]).iterate_weights(3) == [1, 0, 2]
    with pytest.raises(ValueError, match="the objective has 2 weights for a descent of 3 steps"):
        EndToEnd(squared_error, weights=[1, 2]).iterate_weights(3)
    with pytest.raises(ValueError, match='weights must be "harmonic", "equal", "last" or one number per step'):
        EndToEnd(squared_error, weights="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a penalty must not be negative"):
        EndToEnd(squared_error, change_penalty=-1)


def test_end_to_end_by_value() -> None:
    model, x, target = example_model(Reals(), all_rules()[1], Checkpointed(), keep_gradients=True)
    trajectory = model(x)
    losses = [squared_error(y, target).mean().item() for y in trajectory.outputs]
    expected = sum(loss / (4 - t) / 4 for t, loss in enumerate(losses))
    assert float(EndToEnd(squared_error)(model, x, target)) == pytest.approx(expected)
    assert float(EndToEnd(squared_error, weights="last")(model, x, target)) == pytest.approx(losses[-1])
    iterates = [trajectory.start, *trajectory.outputs]
    changes = [float((b - a).flatten(1).norm(dim=1).mean()) for a, b in itertools.pairwise(iterates)]
    penalised = float(EndToEnd(squared_error, change_penalty=0.3)(model, x, target))
    assert penalised == pytest.approx(expected + 0.3 * sum(changes) / 4)
    norms = [float(g.flatten(1).norm(dim=1).mean()) for g in trajectory.gradients]
    penalised = float(EndToEnd(squared_error, gradient_penalty=0.3)(model, x, target))
    assert penalised == pytest.approx(expected + 0.3 * sum(norms) / 4)


def test_remembered_weights_are_those_of_the_iterates_wherever_they_were_made() -> None:
    objective = EndToEnd(squared_error)
    model, x, target = example_model(Reals(), all_rules()[0], Exact())
    with torch.inference_mode():
        scored = objective(model, x, target)
    with FakeTensorMode(allow_non_fake_inputs=True):
        objective.of(model(x), target)
    expected = gradients_of(model, x, target, EndToEnd(squared_error))
    for name, value in gradients_of(model, x, target, objective).items():
        torch.testing.assert_close(value, expected[name])
    assert float(objective(model, x, target)) == pytest.approx(float(scored))
    assert len(objective._cached_weights) == 1
    assert copy.deepcopy(objective)._cached_weights == {}


def test_an_iterate_more_costs_the_operations_of_its_loss_alone() -> None:
    def operations(call: Callable[[], object]) -> int:
        with Operations() as counted:
            call()
        return counted.count

    objective, target = EndToEnd(squared_error), torch.rand(2, 3)

    def total(steps: int) -> int:
        outputs = [torch.rand(2, 3) for _ in range(steps)]
        trajectory = types.SimpleNamespace(outputs=outputs)
        objective._iterates(trajectory, target)  # type: ignore[arg-type]
        return operations(lambda: objective._iterates(trajectory, target))  # type: ignore[arg-type]

    assert total(20) - total(19) == operations(lambda: squared_error(torch.ones(2, 3), target)) - operations(
        lambda: torch.ones(2, 3)
    )


def test_weights_are_numbers_whatever_holds_them() -> None:
    model, x, target = example_model(Reals(), all_rules()[0], Checkpointed())
    expected = EndToEnd(squared_error, weights=[0.5, 0.0, 1.0, 2.0])(model, x, target)
    for weights in (torch.tensor([0.5, 0.0, 1.0, 2.0]), np.array([0.5, 0.0, 1.0, 2.0])):
        objective = EndToEnd(squared_error, weights=weights)
        assert [float(objective(model, x, target)) for _ in range(3)] == pytest.approx([float(expected)] * 3)
        assert len(objective._cached_weights) == 1
    for nothing in ([0, 0, 0], torch.zeros(3), []):
        with pytest.raises(ValueError, match="some iterate must have a weight, but all of them are 0"):
            EndToEnd(squared_error, weights=nothing)


def test_early_stopping_changes_the_loss_of_nobody() -> None:
    """Iterates after the stop count with the answer, as if the descent had gone on standing still."""
    model, x, target = example_model(Reals(), all_rules()[0], Checkpointed(), spen.RelativeChange(0.3))
    trajectory = model(x)
    assert int(trajectory.steps_used.max()) < 4
    expected = sum(float(squared_error(y, target).mean()) / (4 - t) / 4 for t, y in enumerate(trajectory.outputs))
    assert float(EndToEnd(squared_error)(model, x, target)) == pytest.approx(expected)


def test_penalties_shrink_what_they_penalise() -> None:
    for option in ("change_penalty", "gradient_penalty"):
        sizes = []
        for weight in (0.0, 3.0):
            model, x, target = example_model(Reals(), all_rules()[0], Exact(), keep_gradients=True)
            optimizer = torch.optim.Adam(model.parameters(), 0.02)
            objective = EndToEnd(squared_error, **{option: weight})
            for _ in range(40):
                optimizer.zero_grad()
                objective(model, x, target).backward()
                optimizer.step()
            trajectory = model(x)
            moves = trajectory.gradients if option == "gradient_penalty" else [trajectory.output - trajectory.start]
            sizes.append(float(sum(m.flatten(1).norm(dim=1).mean() for m in moves)))
        assert sizes[1] < 0.7 * sizes[0]


def test_losses_by_value() -> None:
    y, target = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0, 1.0]])
    assert float(squared_error(y, target)) == pytest.approx(0.0625)
    assert float(log_loss(y, target)) == pytest.approx(-math.log(0.75))
    assert float(binary_log_loss(y, target)) == pytest.approx(-2 * math.log(0.75))
    assert bool(log_loss(torch.tensor([[1.0, 0.0]]), target).isfinite())


@pytest.mark.parametrize("loss", [squared_error, log_loss, binary_log_loss, labels.soft_f1, labels.hamming])
def test_losses_do_not_broadcast(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """(4, 1) and (4,) would compare every example with the target of every other."""
    sentence = r"y has shape \(4, 1\) and the target \(4,\): a loss needs them alike"
    for target in (torch.arange(4.0), torch.arange(4)):
        with pytest.raises(ValueError, match=sentence):
            loss(torch.full((4, 1), 0.5), target)
    at_once = torch.vmap(lambda y: loss(y, torch.ones(4, 1)))(torch.full((3, 4, 1), 0.5))
    assert at_once.shape == (3, 4)


class Table(Energy):
    """⟨features, y⟩ + a fixed interaction: over {0, 1}³ small enough to enumerate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.7, -0.4, 0.2]))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (self.weight * features * y).sum(1) + 0.1 * y.square().sum(1)


def hamming(y: Tensor, target: Tensor) -> Tensor:
    return (y + target - 2 * y * target).sum(1)


def _box_model() -> spen.SPEN:
    minimizer = spen.Minimizer(Box("projected"), GradientDescent(60, 2.0), Checkpointed())
    return spen.SPEN(energy=Table(), init=_Half(), minimizer=minimizer)


class _Half(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.full_like(features, 0.5)


def test_the_hinge_is_the_largest_margin_violation() -> None:
    """Per coordinate the augmented energy is a parabola over [0, 1]: its minimum is known."""
    model = _box_model()
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.0, -1.0]])
    target = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    slope = model.energy.weight.detach() * x - (1 - 2 * target)  # type: ignore[operator]
    expected = (-slope / 0.2).clamp(0, 1)
    hinge = StructuredHinge(hamming)
    assert torch.allclose(hinge.search(model, x, target), expected, atol=1e-4)
    margin = hamming(expected, target) - model.energy(expected, x) + model.energy(target, x)
    assert float(hinge(model, x, target)) == pytest.approx(float(margin.clamp_min(0).mean()), abs=1e-5)
    augmented = LossAugmented(model.energy, hamming)
    assert torch.allclose(augmented(expected, (x, target)), model.energy(expected, x) - hamming(expected, target))


def test_the_hinge_gradient_is_that_of_the_two_energies() -> None:
    model = _box_model()
    x, target = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    hinge = StructuredHinge(hamming)
    hinge(model, x, target).backward()
    violating = hinge.search(model, x, target)
    assert torch.allclose(model.energy.weight.grad, (x * (target - violating))[0], atol=1e-6)  # type: ignore[arg-type]


def test_the_hinge_is_zero_without_violation_and_says_what_delta_must_be() -> None:
    model = _box_model()
    x = torch.tensor([[-9.0, 9.0, -9.0]]) * 10
    target = torch.tensor([[1.0, 1.0, 1.0]])
    assert float(StructuredHinge(hamming)(model, x * torch.tensor([1.0, 1.0, 1.0]), target)) == 0
    with pytest.raises(ValueError, match=r"needs Δ per example, shape \(1,\); the loss returned \(\)"):
        StructuredHinge(nn.functional.mse_loss)(model, x, target)


def test_the_hinge_accepts_a_map_from_targets_to_points() -> None:
    model = _box_model()
    x, target = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    plain = StructuredHinge(hamming)(model, x, target)
    mapped = StructuredHinge(lambda y, t: hamming(y, t.float()), truth=lambda t: t.float())(model, x, target.long())
    assert torch.equal(plain, mapped)


def test_feedforward_is_the_loss_before_any_descent() -> None:
    model, x, target = example_model(Reals(), all_rules()[0], Checkpointed())
    expected = squared_error(model(x).start, target).mean()
    assert torch.allclose(Feedforward(squared_error)(model, x, target), expected)
    gradients = gradients_of(model, x, target, Feedforward(squared_error))  # type: ignore[arg-type]
    assert float(gradients["init.0.weight"].abs().max()) > 0
    assert all(float(g.abs().max()) == 0 for name, g in gradients.items() if name.startswith("energy"))
