"""Constructors refuse what cannot work, and say what came, what was needed and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spen
from spen.curvature import measure
from spen.domains import Box, Reals, Simplex
from spen.energies import EntropySmoothed, Linear, Scaled, Sum
from spen.gradients import Checkpointed, Exact, Truncated
from spen.gradients.second_order import NotTwiceDifferentiable
from spen.objectives import (
    ContrastiveDivergence,
    DeepValue,
    DenoisingScoreMatching,
    DirectLoss,
    EndToEnd,
    Feedforward,
    InferenceNetwork,
    Langevin,
    ScoreMatching,
    StructuredHinge,
    squared_error,
)
from spen.rules import GradientDescent
from tests.gradients.test_once_differentiable import SquareOnce

ORDER = "; the arguments are Minimizer(domain, rule, gradient, stop)"
FORWARD = "; write a class with a forward method, whose parameters can then be learned"


def minimizer(**changes: Any) -> spen.Minimizer:
    parts: dict[str, Any] = {"domain": Reals(), "rule": GradientDescent(2), "gradient": Exact(), "stop": None}
    return spen.Minimizer(**{**parts, **changes})


def model(**changes: Any) -> spen.SPEN:
    parts: dict[str, Any] = {"energy": Linear(), "init": nn.Identity(), "minimizer": minimizer()}
    return spen.SPEN(**{**parts, **changes})


class NoTest:
    pass


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: minimizer(gradient=Exact),
            "gradient must be a strategy such as Exact(), not the class Exact: write Exact()",
        ),
        (
            lambda: minimizer(gradient="exact"),
            "gradient must be a strategy such as Exact(), not the string 'exact': write Exact()",
        ),
        (
            lambda: minimizer(gradient="finite_difference"),
            "gradient must be a strategy such as Exact(), not the string 'finite_difference': write FiniteDifference()",
        ),
        (
            lambda: minimizer(gradient="newton"),
            f"gradient must be a strategy such as Exact(), not the string 'newton'{ORDER}",
        ),
        (
            lambda: spen.Minimizer(GradientDescent(2), Reals()),  # type: ignore[arg-type]
            f"domain must be a domain such as Reals(), not an object of type GradientDescent{ORDER}",
        ),
        (
            lambda: spen.Minimizer(Reals(), Exact()),  # type: ignore[arg-type]
            f"rule must be a step rule such as GradientDescent(steps=10), not an object of type Exact{ORDER}",
        ),
        (
            lambda: spen.Minimizer(Reals(), GradientDescent(2), spen.RelativeChange(0.1)),  # type: ignore[arg-type]
            f"gradient must be a strategy such as Exact(), not an object of type RelativeChange{ORDER}",
        ),
        (
            lambda: minimizer(domain=Simplex),
            "domain must be a domain such as Reals(), not the class Simplex: write Simplex()",
        ),
        (
            lambda: minimizer(domain="simplex"),
            "domain must be a domain such as Reals(), not the string 'simplex': write Simplex()",
        ),
        (
            lambda: minimizer(rule=GradientDescent),
            "rule must be a step rule such as GradientDescent(steps=10), not the class GradientDescent: "
            "write GradientDescent(steps=…)",
        ),
        (
            lambda: minimizer(rule=10),
            f"rule must be a step rule such as GradientDescent(steps=10), not 10{ORDER}",
        ),
        (
            lambda: minimizer(stop=NoTest()),
            "stop must be a test with a method converged(before, after), such as RelativeChange(1e-3), "
            "not an object of type NoTest",
        ),
        (
            lambda: minimizer(stop=1e-3),
            "stop must be a test with a method converged(before, after), such as RelativeChange(1e-3), not 0.001",
        ),
        (
            lambda: minimizer(stop=spen.RelativeChange),
            "stop must be a test with a method converged(before, after), such as RelativeChange(1e-3), "
            "not the class RelativeChange: write RelativeChange(tolerance=…)",
        ),
        (
            lambda: model(energy=lambda y, features: y.sum(1)),
            f"energy must be a module such as a subclass of spen.Energy, not a lambda function{FORWARD}",
        ),
        (
            lambda: model(energy=Linear),
            "energy must be a module such as a subclass of spen.Energy, not the class Linear: write Linear()",
        ),
        (
            lambda: model(init=torch.zeros_like),
            "init must be a module that maps features to a start, such as nn.Identity(), "
            f"not the function zeros_like{FORWARD}",
        ),
        (
            lambda: model(init=nn.Identity),
            "init must be a module that maps features to a start, such as nn.Identity(), not the class Identity: "
            "write Identity()",
        ),
        (
            lambda: model(features=lambda x: x),
            "features must be a module that maps x to features, such as nn.Linear(3, 4), "
            f"not a lambda function{FORWARD}",
        ),
        (
            lambda: model(minimizer=GradientDescent(2)),
            "minimizer must be a minimiser such as spen.Minimizer(Reals(), GradientDescent(10)), "
            "not an object of type GradientDescent",
        ),
        (
            lambda: model(minimizer=spen.Minimizer),
            "minimizer must be a minimiser such as spen.Minimizer(Reals(), GradientDescent(10)), "
            "not the class Minimizer: write Minimizer(domain=…, rule=…)",
        ),
        (
            lambda: Sum(Linear(), prior=lambda y, features: y.sum(1)),  # type: ignore[arg-type]
            f"the term 'prior' must be a module such as a subclass of spen.Energy, not a lambda function{FORWARD}",
        ),
        (
            lambda: Sum(Linear),  # type: ignore[arg-type]
            "a term must be a module such as a subclass of spen.Energy, not the class Linear: write Linear()",
        ),
        (
            lambda: Scaled(Linear, 0.5),  # type: ignore[arg-type]
            "energy must be a module such as a subclass of spen.Energy, not the class Linear: write Linear()",
        ),
        (
            lambda: EntropySmoothed(Linear),  # type: ignore[arg-type]
            "energy must be a module such as a subclass of spen.Energy, not the class Linear: write Linear()",
        ),
        (
            lambda: ContrastiveDivergence(Langevin),  # type: ignore[arg-type]
            "sampler must be a sampler such as Langevin(), not the class Langevin: write Langevin()",
        ),
        (
            lambda: DeepValue("f1"),  # type: ignore[arg-type]
            "value must be a function value(y, target), not the string 'f1'",
        ),
        (
            lambda: InferenceNetwork(squared_error, anchor_loss=0.5),  # type: ignore[arg-type]
            "anchor_loss must be a function anchor_loss(y, target), not 0.5",
        ),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("objective", [EndToEnd, Feedforward, StructuredHinge, DirectLoss, InferenceNetwork])
def test_a_loss_is_a_function(objective: Any) -> None:
    with pytest.raises(TypeError, match=r"^loss must be a function loss\(y, target\), not the string 'mse'$"):
        objective("mse")
    sentence = r"^loss must be a function loss\(y, target\), not the class MSELoss: give an instance, MSELoss\(\)$"
    with pytest.raises(TypeError, match=sentence):
        objective(nn.MSELoss)
    objective(nn.MSELoss())


@pytest.mark.parametrize(
    "objective",
    [
        lambda truth: StructuredHinge(squared_error, truth=truth),
        lambda truth: InferenceNetwork(squared_error, truth=truth),
        lambda truth: DeepValue(squared_error, truth=truth),
        lambda truth: ContrastiveDivergence(truth=truth),
        lambda truth: ScoreMatching(truth=truth),
        lambda truth: DenoisingScoreMatching(truth=truth),
    ],
)
def test_a_truth_is_a_function(objective: Any) -> None:
    with pytest.raises(TypeError, match=r"^truth must be a function truth\(target\), not an object of type Tensor$"):
        objective(torch.zeros(3))


def test_a_test_of_ones_own_needs_converged_alone() -> None:
    class Never:
        def converged(self, before: Tensor, after: Tensor) -> Tensor:
            return torch.zeros(before.shape[0], dtype=torch.bool)

    trajectory = minimizer(stop=Never())(Linear(), torch.ones(3, 4), torch.zeros(3, 4))
    assert trajectory.steps_used.tolist() == [2, 2, 2]


def test_a_minimizer_prints_how_it_is_differentiated_and_stopped() -> None:
    assert "gradient=Exact(), stop=None" in repr(minimizer())
    shown = repr(minimizer(gradient=Truncated(2, Checkpointed()), stop=spen.RelativeChange(0.1), keep_gradients=True))
    assert "gradient=Truncated(steps=2, through=Checkpointed()), stop=RelativeChange(0.1), keep_gradients=True" in shown


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Sum(**{"a.b": Linear()}), "a summand cannot be called 'a.b': names of modules have no dot"),
        (
            lambda: Linear()(torch.ones(3, 1), torch.ones(3)),
            r"Linear has scores of shape \(3,\) for y of shape \(3, 1\): the scores need one row per example and as",
        ),
        (
            lambda: Linear()(torch.ones(3, 3, 2), torch.ones(3, 2)),
            r"Linear has scores of shape \(3, 2\) for y of shape \(3, 3, 2\): the scores need",
        ),
        (
            lambda: GradientDescent(3, nn.Parameter(torch.tensor(0.2))),
            "the rate is a tensor that requires a gradient, of which a rule takes the value alone: give numbers and",
        ),
        (lambda: GradientDescent(2.5), "a descent takes a whole number of steps, at least one, not 2.5"),  # type: ignore[arg-type]
        (lambda: GradientDescent(True), "a descent takes a whole number of steps, at least one, not True"),
    ],
)
def test_values_that_would_be_used_wrongly_are_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_whole_numbers_of_numpy_and_lists_of_bounds_are_taken() -> None:
    assert GradientDescent(np.int64(3)).steps == 3  # type: ignore[arg-type]
    box = Box(low=[0.0, -1.0], high=np.array([1.0, 2.0]))
    assert torch.equal(box.output(torch.full((1, 2), -1000.0)), torch.tensor([[0.0, -1.0]]))
    assert float(Linear()(torch.ones(2, 3, 2), torch.ones(2, 1, 2))[0]) == -6


@pytest.mark.parametrize("objective", [ScoreMatching(), ScoreMatching(probes=None), DenoisingScoreMatching()])
def test_score_matching_refuses_what_is_differentiable_once(objective: Any) -> None:
    class Once(spen.Energy):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return (SquareOnce.apply(y) + y.square()).sum(1)

    with pytest.raises(NotTwiceDifferentiable, match="score matching differentiates dE/dy, and SquareOnce in the"):
        objective(model(energy=Once()), torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(NotTwiceDifferentiable, match="SquareOnce can be differentiated only once"):
        measure(model(energy=Once()), torch.ones(2, 3))
