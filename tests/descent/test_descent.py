"""The loop: known answers, independence of the batch, stopping, modes, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Domain, Reals, Simplex
from spen.energies import Energy, Linear
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    GradientStrategy,
    Truncated,
)
from spen.objectives import EndToEnd, squared_error
from spen.rules import LBFGS, GradientDescent, Momentum
from spen.testing import Problem, known_problems
from spen.testing.strategy import all_domains, all_rules, dividing_stop, example_model, gradients_of


@pytest.mark.parametrize("problem", known_problems(), ids=lambda p: p.name)
def test_the_descent_finds_the_known_minimiser(problem: Problem) -> None:
    # The entropy bends like 1/y for a projected step; through the softmax its gradient shrinks like y.
    rate = {"linear with entropy, projected": 0.005, "linear with entropy, through_logits": 8.0}.get(problem.name, 0.4)
    minimizer = spen.Minimizer(problem.domain, Momentum(3000, rate, decay=0.5), stop=spen.RelativeChange(1e-12))
    trajectory = minimizer(problem.energy, problem.features, problem.start)
    assert bool(trajectory.converged.all())
    assert torch.allclose(trajectory.output, problem.answer, atol=1e-6)


def test_lbfgs_solves_a_quadratic_in_few_steps() -> None:
    problem = known_problems()[0]
    gradient = spen.Minimizer(Reals(), GradientDescent(10, 0.4))(problem.energy, problem.features, problem.start)
    newton = spen.Minimizer(Reals(), LBFGS(10, 1.0, memory=6))(problem.energy, problem.features, problem.start)
    far = (gradient.output - problem.answer).norm()
    assert (newton.output - problem.answer).norm() < 0.02 * far


def test_lbfgs_options_do_something() -> None:
    problem = known_problems()[0]

    def output(**options: float) -> Tensor:
        return spen.Minimizer(Reals(), LBFGS(6, **options))(problem.energy, problem.features, problem.start).output  # type: ignore[arg-type]

    assert not torch.allclose(output(memory=1), output(memory=5))
    assert not torch.allclose(output(first_rate=0.1), output(first_rate=0.5))
    assert not torch.allclose(output(rate=0.5), output(rate=1.0))


@pytest.mark.parametrize("domain", all_domains(), ids=str)
def test_an_example_does_not_know_its_neighbours(domain: Domain) -> None:
    """Outputs, steps and gradients of one example, alone and among others that stop at other times."""
    objective = EndToEnd(squared_error)
    for rule in all_rules():
        model, x, target = example_model(domain, rule, Checkpointed(), dividing_stop(domain, rule))
        together = model(x)
        gradient = gradients_of(model, x, target, objective)["x"]
        for i in (0, 3, 5):
            alone = model(x[i : i + 1])
            assert torch.allclose(alone.output[0], together.output[i], atol=1e-9)
            assert int(alone.steps_used) == int(together.steps_used[i])
            apart = gradients_of(model, x[i : i + 1], target[i : i + 1], objective)["x"]
            assert torch.allclose(apart[0] / len(x), gradient[i], atol=1e-9)


def test_steps_used_differ_and_energies_stay_after_the_stop() -> None:
    domain, rule = Simplex("projected"), all_rules(6)[0]
    model, x, _ = example_model(domain, rule, Checkpointed(), dividing_stop(domain, rule))
    trajectory = model(x)
    assert len(set(trajectory.steps_used.tolist())) > 1
    energies = trajectory.energies
    assert energies.shape == (7, 6)
    assert bool(energies.isfinite().all())
    for i, used in enumerate(trajectory.steps_used.tolist()):
        assert bool((energies[used:, i] == energies[-1, i]).all())
        assert all(torch.equal(y[i], trajectory.output[i]) for y in trajectory.outputs[used - 1 :])


def test_energies_are_those_of_the_iterates() -> None:
    model, x, _ = example_model(Simplex("logits"), all_rules()[1], Checkpointed())
    trajectory = model(x)
    features = model.features(x)
    iterates = [trajectory.start, *trajectory.outputs]
    expected = torch.stack([model.energy(y, features) for y in iterates])
    assert torch.allclose(trajectory.energies, expected)
    assert not trajectory.energies.requires_grad
    assert "steps=4" in repr(trajectory)


def test_gradients_are_kept_only_when_asked() -> None:
    model, x, _ = example_model(Reals(), all_rules()[0], Checkpointed(), keep_gradients=True)
    trajectory = model(x)
    features = model.features(x).detach()
    leaf = trajectory.start.detach().requires_grad_()
    (expected,) = torch.autograd.grad(model.energy(leaf, features).sum(), leaf)
    assert torch.allclose(trajectory.gradients[0], expected)
    model.minimizer.keep_gradients = False
    with pytest.raises(ValueError, match="build the Minimizer with keep_gradients=True"):
        _ = model(x).gradients


def test_momentum_is_the_papers() -> None:
    """h ← γh + g; y ← y − η_t h, written out for E = ½‖y − c‖²."""
    problem = known_problems()[0]
    rates = [0.3, 0.2, 0.1]
    minimizer = spen.Minimizer(Reals(), Momentum(3, rates, decay=0.5))
    y, h = problem.start, torch.zeros_like(problem.start)
    trajectory = minimizer(problem.energy, problem.features, problem.start)
    for t, rate in enumerate(rates):
        h = 0.5 * h + (y - problem.features) @ problem.energy.matrix  # type: ignore[operator]
        y = y - rate * h
        assert torch.allclose(trajectory.outputs[t], y)


def test_momentum_of_the_authors_code() -> None:
    """h_1 = g_1, h ← γh + (1 − γ)g: ½y² from 1 with γ = 0.75 and rate 0.1 goes through 0.9, 0.8025, 0.7093125."""
    minimizer = spen.Minimizer(Reals(), Momentum(3, 0.1, decay=0.75, dampening=0.75), Exact())
    trajectory = minimizer(Parabola(1.0), torch.zeros(1, 1), torch.ones(1, 1))
    assert torch.allclose(torch.cat(trajectory.outputs).flatten(), torch.tensor([0.9, 0.8025, 0.7093125]))


class Parabola(Energy):
    """½ k y²."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.curvature = curvature

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 0.5 * self.curvature * y.square().sum(1)


@pytest.mark.parametrize(("rate", "decay"), [(0.05, 0.25), (0.02, 0.25), (0.1, 0.0), (0.1, 0.75)])
def test_a_descent_leaves_minima_more_curved_than_its_rate_allows(rate: float, decay: float) -> None:
    """2(1 + β)/r: why the search of a structured SVM can fail (docs/experiments/denoising.md)."""
    limit = 2 * (1 + decay) / rate
    minimizer = spen.Minimizer(Reals(), Momentum(200, rate, decay=decay))
    one = torch.ones(1, 1, dtype=torch.float64)
    assert minimizer(Parabola(0.95 * limit), one, one).output.abs().item() < 0.1
    assert minimizer(Parabola(1.05 * limit), one, one).output.abs().item() > 10


def test_mirror_and_logits_are_one_method_in_other_coordinates() -> None:
    results = []
    for update in ("logits", "mirror"):
        model, x, target = example_model(Simplex(update), all_rules()[1], Exact())  # type: ignore[arg-type]
        results.append((model(x).output, gradients_of(model, x, target, EndToEnd(squared_error))))
    (y, g), (y2, g2) = results
    assert torch.allclose(y, y2)
    assert all(torch.allclose(g[name], g2[name], atol=1e-12) for name in g)
    other, x, _ = example_model(Simplex("through_logits"), all_rules()[1], Exact())
    assert not torch.allclose(other(x).output, y, atol=1e-3)


@pytest.mark.parametrize("stop", [None, spen.RelativeChange(0.08)], ids=["fixed", "stopping"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_truncation_is_a_descent_that_starts_later(k: int, stop: spen.RelativeChange | None) -> None:
    """Truncated(k) for one example = Exact from the detached iterate y_{used − k}, with the remaining rates."""
    rule = GradientDescent(4, [0.3, 0.25, 0.2, 0.15])
    model, x, target = example_model(Reals(), rule, Truncated(k), stop)
    objective = EndToEnd(squared_error, weights="last")
    for i in range(3):
        one, goal = x[i : i + 1], target[i : i + 1]
        trajectory = model(one)
        used = int(trajectory.steps_used)
        iterates = [trajectory.start, *trajectory.outputs]
        begin = max(0, used - k)

        class Fixed(nn.Module):
            def __init__(self, value: Tensor) -> None:
                super().__init__()
                self.value = value

            def forward(self, features: Tensor) -> Tensor:
                return self.value

        late = copy.deepcopy(model)
        if begin > 0:
            late.init = Fixed(iterates[begin].detach())
        late.minimizer = spen.Minimizer(Reals(), GradientDescent(used - begin, [0.3, 0.25, 0.2, 0.15][begin:used]))
        late.minimizer.double()
        late.minimizer.gradient = Exact()
        expected = gradients_of(late, one, goal, objective)
        found = gradients_of(model, one, goal, objective)
        for name, value in expected.items():
            assert torch.allclose(found[name], value, atol=1e-10), name


def test_truncation_cuts_each_example_at_its_own_steps() -> None:
    domain, rule = Simplex("projected"), all_rules(6)[0]
    model, x, target = example_model(domain, rule, Truncated(2), dividing_stop(domain, rule))
    objective = EndToEnd(squared_error)
    apart = [gradients_of(model, x[i : i + 1], target[i : i + 1], objective) for i in range(len(x))]
    whole = gradients_of(model, x, target, objective)
    for name, value in whole.items():
        mean = torch.cat([a[name] for a in apart]) if name == "x" else sum(a[name] for a in apart)
        assert torch.allclose(mean / len(x), value, atol=1e-12), name


class Pair(NamedTuple):
    scores: Tensor
    count: Tensor


class PairEnergy(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def forward(self, y: Tensor, features: dict[str, object]) -> Tensor:
        pair: Pair = features["pair"]  # type: ignore[assignment]
        wave = torch.cos(self.mix(y)).sum(1) * pair.count
        return wave - (pair.scores * y).sum(1) + y.square().sum(1)


class PairFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"pair": Pair(self.layer(x), torch.arange(len(x))), "note": "a string is left alone"}


@pytest.mark.parametrize("strategy", [Checkpointed(), FiniteDifference(), Auto()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("stop", [None, spen.RelativeChange(0.15)], ids=["fixed", "stopping"])
def test_features_may_be_any_tree(strategy: GradientStrategy, stop: spen.RelativeChange | None) -> None:
    def gradients(gradient: GradientStrategy) -> list[Tensor]:
        torch.manual_seed(0)

        class Start(nn.Module):
            def forward(self, features: dict[str, object]) -> Tensor:
                return torch.tanh(features["pair"].scores)  # type: ignore[attr-defined]

        model = spen.SPEN(
            features=PairFeatures(),
            init=Start(),
            energy=PairEnergy(),
            minimizer=spen.Minimizer(Reals(), GradientDescent(4, 0.1), gradient, stop),
        ).double()
        loss = EndToEnd(squared_error)(model, torch.randn(5, 2, dtype=torch.float64), torch.zeros(5, 3))
        return list(torch.autograd.grad(loss, list(model.parameters())))

    for found, expected in zip(gradients(strategy), gradients(Exact()), strict=True):
        assert torch.allclose(found, expected, atol=1e-8)


@dataclass
class Inner:
    scores: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """Its __post_init__ must run once: a second time would change the fields."""

    inner: Inner
    pair: tuple[Tensor, int]
    calls: list[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pair", (2 * self.pair[0], self.pair[1]))


class OfDataclass(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, y: Tensor, features: Nested | dict[str, Tensor]) -> Tensor:
        if isinstance(features, dict):
            scores, other, power = features["scores"], 2 * features["other"], 4
        else:
            assert features.inner.mask is None
            scores, (other, power) = features.inner.scores, features.pair
        return (self.weight * y.pow(power) + torch.tanh(other * y) - scores * y).sum(1)


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), FiniteDifference(), Compiled(patience=0)], ids=str)
@pytest.mark.parametrize("stop", [None, spen.RelativeChange(0.2)], ids=["fixed", "stopping"])
def test_features_may_be_a_dataclass(strategy: GradientStrategy, stop: spen.RelativeChange | None) -> None:
    """By value against the same features in a dict."""
    torch.manual_seed(0)
    scores, other = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)

    def gradients(gradient: GradientStrategy, make: Callable[[Tensor, Tensor], object]) -> list[Tensor]:
        energy, leaves = OfDataclass(), [scores.clone().requires_grad_(), other.clone().requires_grad_()]
        minimizer = spen.Minimizer(Reals(), GradientDescent(4, 0.1), gradient, stop)
        trajectory = minimizer(energy, make(*leaves), torch.ones_like(scores))
        if stop is not None:
            assert len(set(trajectory.steps_used.tolist())) > 1
        loss = sum((y.square().sum() for y in trajectory.outputs), torch.zeros(()))
        return [trajectory.output.detach(), *torch.autograd.grad(loss, [*leaves, energy.weight])]

    found = gradients(strategy, lambda a, b: Nested(Inner(a), (b, 4), ["a", "b"]))
    expected = gradients(Exact(), lambda a, b: {"scores": a, "other": b})
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-7)


def test_features_that_no_gradient_would_reach_are_refused() -> None:
    class Opaque:
        pass

    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.1), Checkpointed())
    scores, start = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4)
    for features, name in ((Opaque(), "Opaque"), ({"a": [scores.detach().numpy()]}, "ndarray")):
        sentence = (
            f"the features hold a {name}, which no gradient would reach: F may return tensors and numbers, in tuples, "
            "lists, dicts, named tuples and dataclasses"
        )
        with pytest.raises(ValueError, match=sentence):
            minimizer(Linear(), features, start)
    sentence = r"a feature tensor has shape \(2, 4\) in a batch of 3; every tensor F returns must have one row"
    with pytest.raises(ValueError, match=sentence):
        minimizer(Linear(), Inner(scores[:2]), start)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_prediction_in_every_mode(mode: type) -> None:
    model, x, _ = example_model(Simplex("logits"), all_rules()[1], Auto())
    expected = model(x).output.detach()
    with mode():
        trajectory = model(x)
        assert torch.allclose(trajectory.output, expected)
        assert trajectory.energies.shape == (5, 6)
    assert not trajectory.output.requires_grad


def test_the_callers_tensors_and_modes_are_left_alone() -> None:
    model, x, target = example_model(Reals(), all_rules()[1], Auto())
    kept = x.clone()
    for p in model.parameters():
        p.grad = None
    EndToEnd(squared_error)(model, x, target)
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()


def test_a_frozen_model_needs_no_strategy() -> None:
    class Refuses(GradientStrategy):
        def run(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("nothing needs a gradient")

    model, x, _ = example_model(Reals(), all_rules()[0], Refuses())
    model.requires_grad_(False)
    assert not model(x).output.requires_grad
