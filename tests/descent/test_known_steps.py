"""Energies that know the step, E(y; features, t): the descent, every strategy, sums, export, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.bundle_entropy import BundleEntropy
from spen.descent.potential import Potential
from spen.domains import Box, Domain, Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Scaled, Sum
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Implicit,
    Truncated,
    Written,
)
from spen.objectives import EndToEnd, StructuredHinge, squared_error
from spen.rules import GradientDescent, Momentum
from spen.testing.strategy import SmoothEnergy, dividing_stop, example_model, gradients_of

STEPS = 4


class Sharpened(Energy):
    """½ (1 + t) ‖y − f‖²: the curvature at step t is 1 + t."""

    knows_step = True

    def forward(self, y: Tensor, features: Tensor, t: Tensor) -> Tensor:  # type: ignore[override]
        return 0.5 * (1 + t) * (y - features).flatten(1).square().sum(1)


class Embedded(Energy):
    """A small network whose weights are scaled by a learned number for each step."""

    knows_step = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmoothEnergy(4, 5)
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, STEPS))

    def forward(self, y: Tensor, features: Tensor, t: Tensor) -> Tensor:  # type: ignore[override]
        return self.scale[t] * self.inner(y * (1 + 0.3 * t.to(y.dtype).sin())[:, None, None], features)


def stepped_model(strategy: GradientStrategy, domain: Domain, *, stopping: bool) -> tuple[spen.SPEN, Tensor, Tensor]:
    rule = Momentum(STEPS, 0.3, decay=0.5, learn_rates=True)
    stop = dividing_stop(domain, rule) if stopping else None
    model, x, target = example_model(domain, rule, strategy, stop, keep_gradients=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model.energy = EntropySmoothed(Sum(Scaled(Embedded(), 0.7, learned=True), SmoothEnergy(4, 5)), 0.2).double()
    return model, x, target


def test_the_descent_tells_the_step() -> None:
    f, start = torch.tensor([[2.0], [-1.0]]), torch.zeros(2, 1)
    trajectory = spen.Minimizer(Reals(), GradientDescent(3, 0.1))(Sharpened(), f, start)
    gap = f
    for t, y in enumerate(trajectory.outputs):
        gap = gap * (1 - 0.1 * (1 + t))
        assert torch.allclose(y, f - gap)
    first, last = 0.5 * f.flatten().square(), 1.5 * gap.flatten().square()
    assert torch.allclose(trajectory.energies[0], first)
    assert torch.allclose(trajectory.energies[-1], last)  # E(y_3) at the last step, t = 2


STRATEGIES: list[tuple[GradientStrategy, float]] = [
    (Checkpointed(), 1e-8),
    (ForwardOverReverse(), 1e-8),
    (FiniteDifference(), 1e-5),
    (FiniteDifference(doubled=False), 1e-5),
    (Truncated(STEPS), 1e-8),
    (Auto(), 1e-8),
    (Written(), 1e-8),
    (Compiled(Checkpointed(), patience=0, keep=1.0), 1e-8),
    (Compiled(patience=0, rows=4), 1e-8),
]


@pytest.mark.parametrize(("strategy", "tolerance"), STRATEGIES, ids=lambda s: str(s)[:40])
def test_every_strategy_agrees_with_exact(strategy: GradientStrategy, tolerance: float) -> None:
    objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
    settings: list[tuple[Domain, bool]] = [(Simplex("through_logits"), True), (Simplex("logits"), False)]
    for domain, stopping in settings[: 1 if isinstance(strategy, Compiled) else 2]:  # compiling takes a second
        exact = gradients_of(*stepped_model(Exact(), domain, stopping=stopping), objective)
        found = gradients_of(*stepped_model(strategy, domain, stopping=stopping), objective)
        scale = max(float(g.abs().max()) for g in exact.values())
        for name, value in exact.items():
            assert float((found[name] - value).abs().max()) <= tolerance * scale, name
        assert (
            float(exact["energy.energy.parts.embedded.energy.scale"].abs().min()) > 0
        )  # every step has its own weight


def test_exact_agrees_with_numerical_differentiation() -> None:
    model, x, target = stepped_model(Exact(), Simplex("logits"), stopping=False)
    objective = EndToEnd(squared_error)
    gradient = gradients_of(model, x, target, objective)["energy.energy.parts.embedded.energy.scale"]
    scale = model.energy.energy.parts["embedded"].energy.scale  # type: ignore[union-attr,index]
    for t in range(STEPS):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                scale[t] += sign * 1e-5
                values.append(float(objective(model, x, target)))
                scale[t] -= sign * 1e-5
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(gradient[t]), rel=1e-5, abs=1e-10)


def test_a_program_serves_every_step() -> None:
    strategy, energy, f = Compiled(patience=0), Scaled(Sharpened(), 0.5, learned=True), torch.ones(2, 1)
    spen.Minimizer(Reals(), GradientDescent(3, 0.1), strategy)(energy, f, 0 * f).output.sum().backward()
    assert len(strategy.programs(energy)) == 1


def test_sums_know_the_step_if_a_part_does() -> None:
    y, f, t = torch.ones(2, 1), torch.zeros(2, 1), torch.tensor([0, 3])
    for energy in (Sharpened(), Sharpened() + Linear(), 2 * Sharpened(), EntropySmoothed(Sharpened())):
        assert energy.knows_step
    assert not (Linear() + Linear()).knows_step
    assert torch.allclose((2 * Sharpened() + Linear())(y, f, t), torch.tensor([1.0, 4.0]))
    assert torch.allclose(Linear()(y, f + 1, t), torch.tensor([-1.0, -1.0]))  # who does not ask is not told


def test_a_call_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="the energy Sharpened knows the step and was called without one"):
        Sharpened()(torch.ones(2, 1), torch.zeros(2, 1))
    model = spen.SPEN(
        energy=Sharpened(), init=nn.Identity(), minimizer=spen.Minimizer(Box("projected"), GradientDescent(2))
    )
    with pytest.raises(ValueError, match="the energy Sharpened knows the step and was called without one"):
        StructuredHinge(squared_error)(model, torch.ones(2, 1), torch.zeros(2, 1))


def test_features_without_a_tensor_are_refused() -> None:
    with pytest.raises(ValueError, match="an energy that knows the step needs features with a tensor"):
        Potential.of(Sharpened(), {"scale": 2.0})


@pytest.mark.parametrize("minimizer", ["Implicit", "BundleEntropy"])
def test_minimisers_of_one_function_are_refused(minimizer: str) -> None:
    f = torch.rand(2, 3, requires_grad=True)
    refused: Any = BundleEntropy(Box("projected"))
    if minimizer == "Implicit":
        refused = spen.Minimizer(Box("projected"), GradientDescent(2), Implicit(), stop=spen.RelativeChange(1e-3))
    energy = EntropySmoothed(Sharpened(), over="box")
    with pytest.raises(ValueError, match="knows the step: it is another function at every step"):
        refused(energy, f, torch.zeros(2, 3))


def test_it_is_exported(tmp_path: Any) -> None:
    from spen.export import BATCH, Exportable, write

    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.1), Exact())
    model = spen.SPEN(energy=Sharpened(), init=nn.Identity(), minimizer=minimizer)
    thing = Exportable(model, lambda seed: torch.randn((3, 2, 5)[seed], 4), {"x": (BATCH,)})
    assert write(thing, tmp_path / "stepped.pt2").difference <= 1e-5  # type: ignore[operator]
