"""The loop: what it refuses, and modes that the backward pass has to remember."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box, Reals
from spen.energies import Energy, Linear
from spen.gradients import (
    Auto,
    Checkpointed,
    FiniteDifference,
    Truncated,
)
from spen.objectives import EndToEnd, squared_error
from spen.rules import LBFGS, GradientDescent, Momentum
from spen.testing import known_problems
from spen.testing.strategy import all_rules, example_model


def test_differentiating_the_replay_twice_is_refused() -> None:
    model, x, target = example_model(Reals(), all_rules()[0], Checkpointed())
    loss = EndToEnd(squared_error)(model, x, target)
    (g,) = torch.autograd.grad(loss, [model.init[0].weight], create_graph=True)  # type: ignore[index]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_errors_say_what_came_and_what_was_needed() -> None:
    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.1))
    scores = torch.randn(3, 4)
    with pytest.raises(
        ValueError, match=r"a feature tensor has shape \(3, 4\) in a batch of 2; every tensor F returns"
    ):
        minimizer(Linear(), scores, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"Init must return floating-point numbers to descend from, not torch\.int64"):
        minimizer(Linear(), scores, torch.zeros(3, 4, dtype=torch.long))

    class Flat(Energy):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return features.sum(1)

    with pytest.raises(ValueError, match="the energy does not depend on y"):
        minimizer(Flat(), scores, torch.zeros(3, 4))

    class Whole(Energy):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return y.sum()

    with pytest.raises(ValueError, match=r"the energy returned shape \(\) for a batch of 3; it must return one number"):
        minimizer(Whole(), scores, torch.zeros(3, 4))
    with pytest.raises(ValueError, match="Init must return a tensor to descend from, not tuple"):
        spen.SPEN(energy=Linear(), init=_Tuple(), minimizer=minimizer)(scores)


class _Tuple(nn.Module):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return features, features


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: GradientDescent(0), "a descent takes a whole number of steps, at least one, not 0"),
        (lambda: GradientDescent(2, -0.1), "a rate must be positive and finite, not"),
        (lambda: GradientDescent(2, [0.1]), r"rate must be one number or 2, one per step; it has shape \(1,\)"),
        (lambda: Momentum(2, decay=1.0), r"the momentum's decay must lie in \[0, 1\), not 1.0"),
        (lambda: LBFGS(2, memory=0), "L-BFGS needs a memory of at least one pair, not 0"),
        (lambda: LBFGS(2, first_rate=0.0), "first_rate must be positive, not 0.0"),
        (lambda: spen.RelativeChange(0), "the tolerance must be positive, not 0"),
        (lambda: FiniteDifference(radius=0), "the radius must be positive, not 0"),
        (lambda: Truncated(0), "Truncated needs at least one step to differentiate, not 0"),
        (lambda: Auto(0), "Auto needs tolerance > 0, not 0"),
    ],
)
def test_bad_options_are_refused(build: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()  # type: ignore[operator]


def test_rates_do_something_and_are_learned_only_when_asked() -> None:
    problem = known_problems()[0]
    outputs = [
        spen.Minimizer(Reals(), GradientDescent(3, r))(problem.energy, problem.features, problem.start).output
        for r in (0.1, 0.2, [0.1, 0.2, 0.3])
    ]
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])
    assert list(GradientDescent(3).parameters()) == []
    learned = list(GradientDescent(3, learn_rates=True).parameters())
    assert [tuple(p.shape) for p in learned] == [(3,)]


def test_bf16_finite_differences_are_refused() -> None:
    model, x, target = example_model(Box("projected"), GradientDescent(2, 0.1), FiniteDifference())
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"computes in torch\.bfloat16, where finite differences are noise"):
        EndToEnd(squared_error)(model, x.bfloat16(), target.bfloat16()).backward()


def test_the_replay_remembers_autocast() -> None:
    """The backward pass evaluates the energy in the precision the forward pass used."""
    seen: list[bool] = []

    class Watching(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return torch.cos(self.layer(y)).float().square().sum(1)

    model = spen.SPEN(
        energy=Watching(),
        init=nn.Identity(),
        minimizer=spen.Minimizer(Reals(), GradientDescent(2, 0.1), Checkpointed()),
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss = EndToEnd(squared_error)(model, torch.randn(2, 4), torch.zeros(2, 4))
    loss.backward()
    assert seen == [True] * 4
