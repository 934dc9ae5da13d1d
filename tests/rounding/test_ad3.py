"""AD³ against HiGHS, brute force and problems whose optimum is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spen.rounding import (
    Constraints,
    count_violations,
    relax_ad3,
    relax_lp,
    round_ad3,
    round_argmax,
    round_greedy,
    round_ilp,
)
from tests.rounding.problems import FLAVOURS, STRUCTURES, brute_force, random_problem, triangle, value_of


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_reaches_the_lp_optimum_of_highs(structure: str, flavour: str) -> None:
    scores, constraints = random_problem(7, structure=structure, flavour=flavour, batch=16, columns=10)
    ours, theirs = relax_ad3(scores, constraints), relax_lp(scores, constraints)
    assert torch.allclose(ours.value, theirs.value, rtol=1e-6, atol=1e-6)
    assert torch.allclose(ours.bound, theirs.value, rtol=1e-6, atol=1e-6)
    if flavour != "negative":
        assert (ours.iterations > 0).sum() > 20


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_relaxed_y_is_feasible_for_the_lp(structure: str) -> None:
    scores, constraints = random_problem(3, structure=structure, flavour="few values", batch=24)
    y = relax_ad3(scores, constraints).y
    assert y.min() > -1e-12
    assert torch.allclose(y.sum(-1), torch.ones(y.shape[:3], dtype=y.dtype))
    assert (y[..., 0][~constraints.mask] == 1).all()
    used = 1 - y[..., 0]
    assert (used @ constraints.groups.double().transpose(1, 2)).max() < 1 + 1e-9
    assert y[..., list(constraints.unique_labels)].sum(2).max() < 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    structure=st.sampled_from(STRUCTURES),
    flavour=st.sampled_from(FLAVOURS),
    unique=st.sampled_from([(), (1,), (1, 2, 3), (5, 2), (1, 2, 3, 4, 5)]),
    columns=st.integers(1, 9),
)
def test_no_rounding_violates_a_constraint(
    seed: int, structure: str, flavour: str, unique: tuple[int, ...], columns: int
) -> None:
    scores, constraints = random_problem(
        seed, structure=structure, flavour=flavour, unique=unique, columns=columns, batch=3
    )
    greedy, ad3 = round_greedy(scores, constraints), round_ad3(scores, constraints)
    assert count_violations(greedy, constraints).total.sum() == 0
    assert count_violations(ad3, constraints).total.sum() == 0
    relaxed = relax_ad3(scores, constraints)
    slack = 1e-6 * scores.abs().max() * columns
    assert (value_of(scores, ad3, constraints) >= value_of(scores, greedy, constraints) - 1e-9).all()
    assert (value_of(scores, ad3, constraints) <= relaxed.bound + slack).all()
    whole = (relaxed.y.amax(-1) > 1 - 1e-6).all(-1)
    assert torch.allclose(value_of(scores, ad3, constraints)[whole], relaxed.value[whole], rtol=1e-6, atol=1e-6)


def test_ilp_and_integral_ad3_equal_brute_force() -> None:
    scores, constraints = random_problem(11, columns=4, labels=4, unique=(1, 2), batch=12, structure="cliques")
    best = brute_force(scores, constraints)
    assert torch.allclose(value_of(scores, round_ilp(scores, constraints), constraints), best)
    assert torch.allclose(value_of(scores, round_ad3(scores, constraints), constraints), best)


def test_a_fractional_optimum_is_found_and_rounded() -> None:
    scores, constraints = triangle()
    relaxed = relax_ad3(scores, constraints)
    assert relaxed.value.item() == pytest.approx(1.5, abs=1e-8)
    assert relaxed.y.amax(-1).min() < 0.6
    assert relaxed.gap.item() < 1e-7
    assert value_of(scores, round_ad3(scores, constraints), constraints).item() == 1.0


def test_cliques_tighten_the_relaxation_of_pairs() -> None:
    scores, pairs = triangle()
    clique = Constraints(pairs.mask, torch.ones(1, 1, 3, dtype=torch.bool))
    assert relax_ad3(scores, clique).value.item() == pytest.approx(1.0, abs=1e-8)


def test_ad3_beats_a_greedy_that_takes_the_middle_of_a_chain() -> None:
    # 2 + 2 at the ends beats 3 in the middle; the middle is the most confident and excludes both.
    scores = torch.zeros(1, 1, 3, 2)
    scores[0, 0, :, 1] = torch.tensor([2.0, 3.0, 2.0])
    groups = torch.tensor([[[True, True, False], [False, True, True]]])
    constraints = Constraints(torch.ones(1, 1, 3, dtype=torch.bool), groups)
    assert round_greedy(scores, constraints).tolist() == [[[0, 1, 0]]]
    assert round_ad3(scores, constraints).tolist() == [[[1, 0, 1]]]


def test_predictions_do_not_depend_on_the_rest_of_the_batch() -> None:
    scores, constraints = random_problem(5, structure="pairs", batch=10)
    together = relax_ad3(scores, constraints)
    for b in range(10):
        part = Constraints(constraints.mask[b : b + 1], constraints.groups[b : b + 1], constraints.unique_labels)
        alone = relax_ad3(scores[b : b + 1], part)
        assert torch.equal(alone.iterations[0], together.iterations[b])
        assert torch.allclose(alone.y[0], together.y[b], atol=1e-9)
        assert torch.equal(round_ad3(scores[b : b + 1], part)[0], round_ad3(scores, constraints)[b])


def test_rows_with_a_feasible_argmax_take_no_iteration() -> None:
    scores, constraints = random_problem(2)
    feasible = count_violations(round_argmax(scores, constraints), constraints).total == 0
    relaxed = relax_ad3(scores, constraints)
    assert feasible.any()
    assert torch.equal(relaxed.iterations == 0, feasible)
    assert (relaxed.gap[feasible] == 0).all()


def test_every_option_does_something() -> None:
    scores, constraints = random_problem(1, structure="pairs", flavour="nearly tied", batch=20)
    usual = relax_ad3(scores, constraints)
    assert relax_ad3(scores, constraints, max_iterations=20).iterations.max() == 20
    assert relax_ad3(scores, constraints, max_iterations=20).gap.max() > usual.gap.max()
    assert relax_ad3(scores, constraints, tolerance=0.5).iterations.sum() < usual.iterations.sum()
    assert not torch.equal(relax_ad3(scores, constraints, penalty=0.01).iterations, usual.iterations)
    assert not torch.equal(relax_ad3(scores, constraints, over_relaxation=1.0).iterations, usual.iterations)


def test_rounding_options_reach_the_solver() -> None:
    scores, constraints = random_problem(1, structure="pairs", batch=40, columns=12)
    usual = value_of(scores, round_ad3(scores, constraints), constraints).sum()
    for options in ({"max_iterations": 1}, {"tolerance": 10.0}):
        hasty = round_ad3(scores, constraints, **options)  # type: ignore[arg-type]
        assert count_violations(hasty, constraints).total.sum() == 0
        assert value_of(scores, hasty, constraints).sum() < usual
    for bad in ({"penalty": 0.0}, {"over_relaxation": 2.0}):
        with pytest.raises(ValueError):
            round_ad3(scores, constraints, **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tolerance": -1.0},
            "AD³ got tolerance -1.0, max_iterations 2000, penalty 0.15; they must be ≥ 0, ≥ 1 and > 0",
        ),
        ({"max_iterations": 0}, "max_iterations 0"),
        ({"penalty": 0.0}, "penalty 0.0"),
        ({"over_relaxation": 2.0}, "over_relaxation 2.0 must lie between 0 and 2 for AD³ to converge; 1 is plain AD³"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        relax_ad3(*triangle(), **options)
    assert message in str(error.value)


def test_inputs_are_left_alone_and_single_precision_works() -> None:
    scores, constraints = random_problem(4)
    single = scores.float().requires_grad_()
    before = single.detach().clone()
    labels = round_ad3(single, constraints)
    assert labels.dtype == torch.long
    assert torch.equal(single, before)
    assert torch.equal(labels, round_ad3(before, constraints))


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_empty_batches_pass_through(shape: tuple[int, int, int]) -> None:
    constraints = Constraints(
        torch.ones(shape, dtype=torch.bool), torch.ones(shape[0], 2, shape[2], dtype=torch.bool), (1,)
    )
    scores = torch.zeros(*shape, 4)
    for call in (round_argmax, round_greedy, round_ad3, round_ilp):
        assert call(scores, constraints).shape == shape
    assert relax_ad3(scores, constraints).value.shape == shape[:2]
