"""Argmax, threshold, greedy, ILP, violations, and the words of their errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spen.rounding import (
    Constraints,
    count_violations,
    relax_lp,
    round_ad3,
    round_argmax,
    round_greedy,
    round_ilp,
    round_threshold,
)
from tests.rounding.problems import random_problem, triangle, value_of


def full(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def test_argmax_masks_and_prefers_the_empty_label_in_a_tie() -> None:
    scores = torch.tensor([[[[0.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 9.0, 0.0]]]])
    mask = torch.tensor([[[True, True, False]]])
    assert round_argmax(scores, Constraints(mask, full(1, 1, 3))).tolist() == [[[2, 0, 0]]]


def test_threshold() -> None:
    y = torch.tensor([0.2, 0.5, 0.6])
    assert round_threshold(y).tolist() == [False, False, True]
    assert round_threshold(y, threshold=0.1).tolist() == [True, True, True]
    with pytest.raises(ValueError, match="y holds nan or infinity; a threshold needs finite numbers"):
        round_threshold(torch.tensor([torch.nan]))


def test_greedy_gives_the_second_its_next_best_label() -> None:
    # Both arcs want label 1; the surer one keeps it, the other falls back to 2, then the third to nothing.
    scores = torch.tensor([[[[0.0, 5.0, 0.1], [0.0, 4.0, 3.0], [0.0, 1.0, -1.0]]]])
    constraints = Constraints(full(1, 1, 3), torch.zeros(1, 0, 3, dtype=torch.bool), (1,))
    assert round_greedy(scores, constraints).tolist() == [[[1, 2, 0]]]


def test_greedy_keeps_the_surer_of_two_overlapping_arcs() -> None:
    scores = torch.tensor([[[[0.0, 1.0], [0.0, 2.0], [0.0, 0.5]]]])
    constraints = Constraints(full(1, 1, 3), torch.tensor([[[True, True, False]]]))
    assert round_greedy(scores, constraints).tolist() == [[[0, 1, 1]]]


def test_spans_and_groups_describe_the_same_set() -> None:
    starts, ends = torch.tensor([[0, 2, 5, 1]]), torch.tensor([[3, 4, 6, 5]])
    spans = Constraints.from_spans(full(1, 1, 4), starts, ends, (1,))
    overlap = (starts[:, :, None] <= ends[:, None, :]) & (starts[:, None, :] <= ends[:, :, None])
    assert torch.equal(spans.conflicts(), overlap & ~torch.eye(4, dtype=torch.bool))
    either = torch.nn.functional.one_hot(overlap[0].triu(1).nonzero(), 4).sum(1).bool()
    pairs = Constraints(full(1, 1, 4), either[None], (1,))
    assert torch.equal(pairs.conflicts(), spans.conflicts())
    scores = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_ad3(scores, spans), round_ad3(scores, pairs))


def test_unique_labels_and_groups_each_change_the_answer() -> None:
    scores, constraints = random_problem(0)
    free = Constraints(constraints.mask, constraints.groups)
    alone = Constraints(constraints.mask, constraints.groups[:, :0], constraints.unique_labels)
    for call in (round_greedy, round_ad3, round_ilp):
        assert not torch.equal(call(scores, free), call(scores, constraints))
        assert not torch.equal(call(scores, alone), call(scores, constraints))


def test_violations_are_counted_by_kind() -> None:
    groups = torch.tensor([[[True, True, True, False], [True, True, False, False]]])
    mask = torch.tensor([[[True, True, True, True], [True, True, True, False]]])
    constraints = Constraints(mask, groups, (1, 2))
    labels = torch.tensor([[[1, 1, 3, 1], [2, 0, 0, 2]]])
    violations = count_violations(labels, constraints)
    assert violations.overlaps.tolist() == [[3, 0]]
    assert violations.repeats.tolist() == [[2, 0]]
    assert violations.invalid.tolist() == [[0, 1]]
    assert violations.total.tolist() == [[5, 1]]
    soft = torch.nn.functional.one_hot(labels, 4).double()
    assert count_violations(soft, constraints).total.tolist() == [[5, 1]]


def test_ilp_dominates_greedy_and_stays_below_the_lp() -> None:
    scores, constraints = random_problem(6, structure="pairs", batch=10)
    exact = value_of(scores, round_ilp(scores, constraints), constraints)
    assert count_violations(round_ilp(scores, constraints), constraints).total.sum() == 0
    assert (exact >= value_of(scores, round_greedy(scores, constraints), constraints) - 1e-9).all()
    assert (exact <= relax_lp(scores, constraints).value + 1e-9).all()


def test_ilp_time_limit_reaches_the_solver() -> None:
    with pytest.raises(RuntimeError, match=r"HiGHS found no labelling of example 0: .* raise time_limit"):
        round_ilp(*random_problem(6, structure="pairs"), time_limit=0.0)


@pytest.mark.parametrize("call", [round_argmax, round_greedy, round_ad3, round_ilp, relax_lp])
def test_bad_scores_are_named(call) -> None:
    scores, constraints = triangle(unique=(1,))
    with pytest.raises(ValueError) as error:
        call(scores[0], constraints)
    assert str(error.value) == (
        "scores have shape (1, 3, 3) but must be (1, 1, 3) with a dimension for the labels after it; "
        "give one score per arc and label"
    )
    scores[0, 0, 1, 2] = -torch.inf
    with pytest.raises(ValueError) as error:
        call(scores, constraints)
    assert str(error.value) == ("scores of valid arcs hold nan or infinity; clamp log-probabilities before rounding")
    with pytest.raises(ValueError) as error:
        call(torch.zeros(1, 1, 3, 1), constraints)
    assert str(error.value) == "unique label 1 is out of range; there are 1 labels, 0 to 0"
    with pytest.raises(ValueError, match=r"scores are torch.int64 over 3 labels but must be real numbers"):
        call(torch.zeros(1, 1, 3, 3, dtype=torch.long), constraints)


def test_scores_outside_the_mask_may_be_anything() -> None:
    scores, constraints = random_problem(8)
    spoilt = scores.masked_fill(~constraints.mask[..., None], torch.nan)
    for call in (round_argmax, round_greedy, round_ad3, round_ilp):
        assert torch.equal(call(spoilt, constraints), call(scores, constraints))


def test_bad_constraints_are_named() -> None:
    mask, groups = full(2, 1, 3), full(2, 1, 3)
    cases = [
        (lambda: Constraints(mask[0], groups), "mask is torch.bool of shape (1, 3) but must be bool of shape (B, rows"),
        (lambda: Constraints(mask.float(), groups), "mask is torch.float32 of shape (2, 1, 3) but must be bool"),
        (
            lambda: Constraints(mask, full(2, 1, 4)),
            "groups is torch.bool of shape (2, 1, 4) but must be bool of shape (2, groups, 3) to go with the mask",
        ),
        (
            lambda: Constraints(mask, groups, (0, 1)),
            "unique_labels holds the empty label 0, which any number of arcs may carry; leave it out",
        ),
        (lambda: Constraints(mask, groups, (1, 1)), "unique_labels (1, 1) names a label twice; name each once"),
        (
            lambda: Constraints.from_spans(mask, torch.zeros(2, 3), torch.zeros(2, 4)),
            "starts and ends have shapes (2, 3) and (2, 4) but must both be (2, 3)",
        ),
        (
            lambda: Constraints.from_spans(mask, torch.ones(2, 3), torch.zeros(2, 3)),
            "a span ends before it starts; ends are inclusive, so end ≥ start",
        ),
    ]
    for build, message in cases:
        with pytest.raises(ValueError) as error:
            build()
        assert message in str(error.value)


def test_violations_name_a_bad_labelling() -> None:
    _, constraints = triangle(unique=(5,))
    with pytest.raises(ValueError, match=r"y is torch.int64 of shape \(1, 3\) but must hold integer labels of shape"):
        count_violations(torch.zeros(1, 3, dtype=torch.long), constraints)
    with pytest.raises(ValueError, match="unique label 5 is out of range; there are 3 labels, 0 to 2"):
        count_violations(torch.zeros(1, 1, 3, 3), constraints)
