"""More computation at prediction: longer descents, restarts, checks, and descents that never get worse."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.bundle_entropy import BundleEntropy
from spen.domains import Box, Domain, Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear
from spen.gradients import Checkpointed, Compiled, Exact, FiniteDifference, GradientStrategy, Truncated
from spen.objectives import EndToEnd, squared_error
from spen.protocols import StepRule
from spen.rules import Extended, GradientDescent, Momentum
from spen.testing.strategy import dividing_stop, example_model, gradients_of


class DoubleWell(Energy):
    """(y² − 1)² + x·y: for x > 0 the minimum near −1 is the lower one."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return ((y * y - 1).square() + 0.3 * features * y).flatten(1).sum(1)


class Told(Energy):
    """½ (y − t)²: the minimum is the number of the step."""

    knows_step = True

    def forward(self, y: Tensor, features: Tensor, t: Tensor) -> Tensor:  # type: ignore[override]
        return 0.5 * (y - t[:, None]).square().sum(1)


def wells(rule: StepRule | None = None, **options: Any) -> spen.SPEN:
    """A descent that starts at x, in the higher of the two wells."""
    rule = GradientDescent(20, 0.05) if rule is None else rule
    return spen.SPEN(energy=DoubleWell(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), rule, **options))


X = torch.tensor([[0.8], [-0.9], [1.1]])


def test_restarts_find_the_lower_well() -> None:
    torch.manual_seed(0)
    model = wells()
    assert torch.equal(model(X).output.sign(), X.sign())
    found = model.search(X, restarts=16, noise=2.0)
    assert torch.equal(found.output.sign(), -X.sign())
    assert bool(found.energies.isnan().any())  # a start so far away that the descent diverges: it is not selected
    assert torch.equal(found.energy, found.energies.nan_to_num(torch.inf).amin(0))
    assert torch.allclose(model.energy(found.output, X), found.energy)
    assert found.energies.shape == found.steps_used.shape == (16, 3)
    assert bool((found.selected > 0).all())
    assert torch.equal(model(X, start=found.start).output, found.output)
    assert found.solved is None
    assert repr(found) == "Found(output=(3, 1), restarts=16)"


def test_one_restart_is_the_prediction_itself() -> None:
    model = wells()
    found = model.search(X)
    assert torch.equal(found.output, model(X).output)
    assert found.selected.tolist() == [0, 0, 0]
    assert found.steps_used.tolist() == [[20, 20, 20]]


def test_more_steps_repeat_the_last_one() -> None:
    rates = [0.3, 0.2, 0.1]
    model = spen.SPEN(energy=Linear(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), GradientDescent(3, rates)))
    x = torch.ones(2, 1)
    for steps, reached in ((2, 0.5), (3, 0.6), (7, 1.0)):
        assert torch.allclose(model.search(x, steps=steps).output, x + reached)
        assert torch.allclose(model(x, steps=steps).output, x + reached)
    told = spen.Minimizer(Reals(), GradientDescent(3, 1.0))
    assert told(Told(), x, x, steps=6).output.flatten().tolist() == [2.0, 2.0]  # past T the step is the last, t = 2


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), Compiled(patience=0)], ids=str)
def test_other_numbers_of_steps_train_by_value(strategy: GradientStrategy) -> None:
    rule = Momentum(3, [0.3, 0.2, 0.1], decay=0.5, learn_rates=True)
    written = Momentum(5, [0.3, 0.2, 0.1, 0.1, 0.1], decay=0.5, learn_rates=True)
    gradients = []
    for own, steps, gradient in ((rule, 5, strategy), (written, None, Exact())):
        model, x, target = example_model(Simplex("logits"), own, gradient)
        EndToEnd(squared_error).of(model(x, steps=steps), target).backward()
        rates = dict(model.named_parameters())["minimizer.rule.rates.log"].grad
        assert rates is not None
        gradients.append((rates, [p.grad for p in model.energy.parameters() if p.grad is not None]))
    (few, first), (many, second) = gradients
    assert torch.allclose(few[:2], many[:2])
    assert torch.allclose(few[2], many[2:].sum())
    assert all(torch.allclose(a, b) for a, b in zip(first, second, strict=True))


def test_answers_do_not_depend_on_how_many_run_at_once() -> None:
    def found(rows: int | None) -> Any:
        return wells().search(X, restarts=5, noise=2.0, rows=rows, generator=torch.Generator().manual_seed(3))

    one = found(None)
    for rows in (1, 2, 4, 100):
        other = found(rows)
        assert torch.allclose(other.output, one.output)
        assert torch.equal(other.selected, one.selected)
        assert torch.allclose(other.energies, one.energies, equal_nan=True)


def test_the_first_solved_answer_stays_whatever_runs_at_once() -> None:
    def found(rows: int) -> list[int]:
        options: dict[str, Any] = {"solved": lambda y, x: (y.abs() > 1.2).flatten(), "rows": rows}
        draws = torch.Generator().manual_seed(3)
        return wells().search(X, steps=1, restarts=12, noise=2.0, generator=draws, **options).selected.tolist()

    assert found(1) == found(3) == found(64)
    assert max(found(1)) > 0


def test_a_search_under_autocast_keeps_answers_in_float32() -> None:
    torch.manual_seed(0)
    model = spen.SPEN(
        energy=DoubleWell(), init=nn.Linear(1, 1), minimizer=spen.Minimizer(Reals(), GradientDescent(3, 0.1), Exact())
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert model.search(X.float(), restarts=3).output.dtype == torch.float32


def test_the_start_may_be_random() -> None:
    far = 1000 + X
    model = spen.SPEN(energy=Linear(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), GradientDescent(1, 1e-9)))
    near = model.search(far, restarts=2, start="random", noise=0.5, select=lambda y, x: y.abs().flatten())
    assert bool((near.output.abs() < 10).all())
    assert near.selected.tolist() == [1, 1, 1]
    stay = model.search(far, restarts=2, noise=0.5, select=lambda y, x: y.abs().flatten())
    assert bool((stay.output > 900).all())


def test_what_is_solved_is_left_alone_and_preferred() -> None:
    torch.manual_seed(1)

    def positive(y: Tensor, x: Tensor) -> Tensor:
        return (y > 0).flatten()

    found = wells().search(X, restarts=30, noise=2.0, solved=positive)
    assert found.solved is not None
    assert found.solved.tolist() == [True, True, True]
    # The first and the third are positive at once: one step, no restarts, though their other wells are lower.
    assert found.steps_used[:, 0].tolist() == [1] + [0] * 29
    assert bool(found.energies[1:, 2].isnan().all())
    assert int(found.selected[1]) > 0
    assert repr(found).endswith("solved=3 of 3)")
    none = wells().search(X, restarts=3, solved=lambda y, x: torch.zeros(len(y), dtype=torch.bool))
    assert none.solved is not None
    assert not bool(none.solved.any())
    assert none.steps_used.tolist() == [[20] * 3] * 3


def test_a_descent_that_has_arrived_stops() -> None:
    found = wells().search(X, steps=4000, stop=spen.RelativeChange(1e-4))
    assert int(found.steps_used.max()) < 400
    both = wells().search(X, steps=4000, stop=spen.RelativeChange(1e-4), solved=lambda y, x: (y < -5).flatten())
    assert torch.equal(both.steps_used, found.steps_used)


def test_an_empty_batch_has_empty_answers() -> None:
    assert wells().search(X[:0], restarts=3).output.shape == (0, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"restarts": 0}, "search needs restarts ≥ 1, noise ≥ 0 and rows ≥ 1, not 0, 1.0 and None"),
        ({"start": "far"}, 'start is "perturbed" or "random", not \'far\''),
        ({"steps": 0}, "a descent takes a whole number of steps, at least one, not 0"),
        ({"backtracks": -1}, "backtracks is how often a step is halved, 0 or more, or None; not -1"),
    ],
)
def test_wrong_options_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        wells().search(X, **options)


def test_functions_and_minimisers_are_checked() -> None:
    with pytest.raises(
        TypeError, match=r'select must be a function select\(y, x\) or the string "energy", not the string'
    ):
        wells().search(X, select="lowest")
    with pytest.raises(TypeError, match=r"solved must be a function solved\(y, x\), not True"):
        wells().search(X, solved=True)
    energy = EntropySmoothed(Linear(), over="box")
    model = spen.SPEN(energy=energy, init=nn.Identity(), minimizer=BundleEntropy(Box("projected")))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="BundleEntropy finds its answer from any start: use a Minimizer"):
        model.search(X)


# ── descents that never get worse ──


def test_steps_that_raise_the_energy_are_halved_or_not_taken() -> None:
    start = torch.tensor([[1.0], [1.0]])
    square = spen.testing.problems.Quadratic(torch.eye(1))
    f = torch.zeros(2, 1)

    def output(rate: float, backtracks: int | None) -> float:
        return float(
            spen.Minimizer(Reals(), GradientDescent(1, rate, backtracks=backtracks))(square, f, start).output[0]
        )

    assert output(3.0, None) == -2.0  # ½y² goes up, from 0.5 to 2
    assert output(3.0, 0) == 1.0  # not taken
    assert output(3.0, 1) == -0.5  # half of it
    assert output(30.0, 3) == 1.0  # an eighth is still too long
    assert output(30.0, 4) == pytest.approx(1 - 30 / 16)
    assert output(0.5, 4) == 0.5  # taken as it is


def test_a_step_that_is_not_taken_is_no_arrival() -> None:
    square, start = spen.testing.problems.Quadratic(torch.eye(1)), torch.tensor([[1.0], [2.0]])
    rule, stop = GradientDescent(3, [3.0, 0.5, 0.5], backtracks=0), spen.RelativeChange(1e-4)
    trajectory = spen.Minimizer(Reals(), rule, stop=stop)(square, torch.zeros(2, 1), start)
    assert trajectory.output.tolist() == [[0.25], [0.5]]
    assert not bool(trajectory.converged.any())


def test_examples_that_stopped_cost_no_backtracks() -> None:
    calls = 0

    class Counted(spen.testing.problems.Quadratic):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(y, features)

    start = torch.tensor([[1e-9], [1.0]])  # the first has arrived at once
    rule, stop = GradientDescent(10, 0.1, backtracks=5), spen.RelativeChange(1e-3)
    spen.Minimizer(Reals(), rule, Exact(), stop)(Counted(torch.eye(1)), torch.zeros(2, 1), start)
    assert calls <= 2 * 10 + 2  # a gradient and one trial for each step


def test_backtracks_that_change_count_for_other_numbers_of_steps_too() -> None:
    square, start = spen.testing.problems.Quadratic(torch.eye(1)), torch.ones(1, 1)
    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 3.0, backtracks=0), Exact())
    assert float(minimizer(square, torch.zeros(1, 1), start, steps=4).output) == 1.0
    minimizer.rule.backtracks = None
    assert float(minimizer(square, torch.zeros(1, 1), start, steps=4).output) == 16.0


@pytest.mark.parametrize("domain", [Reals(), Box("through_logits"), Simplex("logits")], ids=str)
def test_no_step_raises_the_energy(domain: Domain) -> None:
    # The gradient with respect to y is no descent direction for the logits of every energy: halving makes it one here.
    model, x, _ = example_model(domain, Momentum(12, 80.0, decay=0.5, backtracks=4), Exact())
    before, after = model(x).energies[:-1], model(x).energies[1:]
    assert bool((after <= before + 1e-12).all())
    model.minimizer.rule.backtracks = None
    wild = model(x).energies
    assert bool((wild[1:] > wild[:-1]).any())


@pytest.mark.parametrize("stopping", [False, True], ids=["fixed", "stopping"])
@pytest.mark.parametrize(
    "strategy", [Checkpointed(), FiniteDifference(), Truncated(6), Compiled(patience=0)], ids=lambda s: str(s)[:12]
)
def test_halved_steps_are_differentiated_by_value(strategy: GradientStrategy, stopping: bool) -> None:
    domain, rule = Simplex("through_logits"), Momentum(6, 20.0, decay=0.5, learn_rates=True, backtracks=2)
    stop = dividing_stop(domain, rule) if stopping else None
    objective = EndToEnd(squared_error)
    exact = gradients_of(*example_model(domain, rule, Exact(), stop), objective)
    found = gradients_of(*example_model(domain, rule, strategy, stop), objective)
    scale = max(float(g.abs().max()) for g in exact.values())
    for name, value in exact.items():
        assert float((found[name] - value).abs().max()) <= 1e-5 * scale, name


def test_exact_differentiates_halved_steps_as_numbers_do() -> None:
    model, x, target = example_model(Reals(), GradientDescent(4, 30.0, learn_rates=True, backtracks=5), Exact())
    objective = EndToEnd(squared_error)
    gradient = gradients_of(model, x, target, objective)["minimizer.rule.rates.log"]
    rates = dict(model.named_parameters())["minimizer.rule.rates.log"]
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            rates += sign * 1e-6
            values.append(float(objective(model, x, target)))
            rates -= sign * 1e-6
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(gradient.sum()), rel=1e-4)


def test_backtracks_are_checked_shown_and_not_exported() -> None:
    from spen.export.predictor import check_exportable

    with pytest.raises(ValueError, match="backtracks is how often a step is halved, 0 or more, or None; not -1"):
        GradientDescent(2, backtracks=-1)
    model = wells(Momentum(2, backtracks=1))
    with pytest.raises(ValueError, match="a rule with backtracks cannot be exported"):
        check_exportable(model)
    assert Extended(model.minimizer.rule, 5).backtracks == 1
    assert Extended(model.minimizer.rule, 5, backtracks=3).backtracks == 3
    better = wells(GradientDescent(5, 2.0)).search(X, backtracks=6)
    assert bool((better.energy <= DoubleWell()(X, X)).all())


class Product(nn.Module):
    """F of an input with a tensor that all examples share."""

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        return x[0] * x[1]


def test_inputs_may_hold_what_all_examples_share() -> None:
    model = spen.SPEN(
        energy=Linear(), init=nn.Identity(), features=Product(), minimizer=spen.Minimizer(Reals(), GradientDescent(2))
    )
    x = (torch.ones(3, 4), torch.tensor(2.0))
    assert torch.equal(model.search(x).output, model(x).output)
    with pytest.raises(ValueError, match="so every tensor of x needs 3 rows, one per example"):
        model.search(x, solved=lambda y, x: y.sum(1) > 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"solved": lambda y, x: True}, r"solved\(y, x\) must return a tensor of shape \(3,\), one per .*, not bool"),
        ({"solved": lambda y, x: y > 0}, r"solved\(y, x\) must return .*, not shape \(3, 4\)"),
        ({"select": lambda y, x: y.sum(1, keepdim=True)}, r"select\(y, x\) must return .*, not shape \(3, 1\)"),
    ],
)
def test_wrong_answers_of_functions_are_refused(options: Any, sentence: str) -> None:
    model = spen.SPEN(energy=Linear(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), GradientDescent(2)))
    with pytest.raises(ValueError, match=sentence):
        model.search(torch.ones(3, 4), restarts=2, **options)
