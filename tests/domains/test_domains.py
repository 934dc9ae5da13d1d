"""Domains by value: projections against their optimality conditions, logits of any size, updates against formulas."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import spen
from spen.domains import Box, Reals, Simplex, project_simplex
from spen.domains.box import BoxUpdate
from spen.domains.simplex import SimplexUpdate
from spen.energies import EntropySmoothed, Linear
from spen.gradients import Checkpointed
from spen.rules import GradientDescent, Momentum
from spen.testing.problems import Quadratic

BOX_UPDATES: tuple[BoxUpdate, ...] = ("projected", "logits", "through_logits")
UPDATES: tuple[SimplexUpdate, ...] = ("logits", "through_logits", "mirror", "projected")
vectors = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors)
def test_projection_is_the_nearest_point(point: Tensor) -> None:
    """y is feasible and ⟨point − y, e_i − y⟩ ≤ 0 for every corner e_i: the variational inequality."""
    y = project_simplex(point)
    assert bool((y >= 0).all())
    assert float(y.sum()) == pytest.approx(1, abs=1e-9)
    corners = torch.eye(len(point), dtype=torch.float64)
    assert float(((corners - y) @ (point - y)).max()) <= 1e-9 * max(1, float(point.abs().max()))


@given(vectors, st.sampled_from(UPDATES))
def test_every_update_stays_on_the_simplex(logits: Tensor, update: SimplexUpdate) -> None:
    domain = Simplex(update)
    z = domain.step(domain.enter(logits[None]), logits.flip(0)[None])
    y = domain.output(z)
    assert bool((y >= 0).all())
    assert float(y.sum()) == pytest.approx(1, abs=1e-9)


@given(vectors)
def test_the_box_keeps_every_coordinate(point: Tensor) -> None:
    for update in ("projected", "logits", "through_logits"):
        domain = Box(update)  # type: ignore[arg-type]
        y = domain.output(domain.step(domain.enter(point[None]), -point[None]))
        assert bool(((y >= 0) & (y <= 1)).all())


def test_projection_of_points_inside_changes_nothing() -> None:
    y = torch.softmax(torch.randn(4, 3, 5, dtype=torch.float64), -1)
    assert torch.allclose(project_simplex(y), y, atol=1e-12)


def test_projection_has_the_right_derivative() -> None:
    point = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(project_simplex, point)


def test_the_updates_read_as_the_paper() -> None:
    logits, g = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    y = torch.softmax(logits, -1)

    def after(update: SimplexUpdate) -> Tensor:
        domain = Simplex(update)
        return domain.output(domain.step(domain.enter(logits), 0.3 * g))

    assert torch.allclose(after("logits"), torch.softmax(logits - 0.3 * g, -1))
    assert torch.allclose(after("through_logits"), torch.softmax(logits - 0.3 * g, -1))
    assert torch.allclose(after("mirror"), torch.softmax(y.log() - 0.3 * g, -1))
    assert torch.allclose(after("projected"), project_simplex(y - 0.3 * g))
    box = Box("projected")
    assert torch.equal(box.step(box.enter(logits), 0.3 * g), (logits.clamp(0, 1) - 0.3 * g).clamp(0, 1))
    assert torch.equal(Reals().step(logits, 0.3 * g), logits - 0.3 * g)


def test_clipping_sends_exactly_zero_gradient() -> None:
    """Why the paper does not use it (Sec. 4.1)."""
    z = torch.tensor([[0.5, 0.9, 0.1]], requires_grad=True)
    (bar,) = torch.autograd.grad(Box("projected").step(z, torch.tensor([[0.1, -0.5, 0.5]])).sum(), z)
    assert bar.tolist() == [[1.0, 0.0, 0.0]]


def test_only_through_logits_differentiates_through_the_softmax() -> None:
    assert [Simplex(u).through for u in UPDATES] == [False, True, False, False]
    assert [Box(u).through for u in ("projected", "logits", "through_logits")] == [False, False, True]  # type: ignore[arg-type]


def test_unknown_updates_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Simplex has no update 'newton'; choose one of logits, through_logits"):
        Simplex("newton")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Box has no update 'mirror'; choose \"projected\""):
        Box("mirror")  # type: ignore[arg-type]


@pytest.mark.parametrize("update", UPDATES)
def test_tangents_of_the_simplex_keep_the_sum(update: SimplexUpdate) -> None:
    y = project_simplex(torch.randn(4, 6, dtype=torch.float64))
    d = Simplex(update).lift(y, torch.randn(4, 6, dtype=torch.float64))
    assert torch.allclose(d.sum(-1), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert bool((d[y == 0] == 0).all())


bounds = st.tuples(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)).map(lambda b: (b[0], b[0] + b[1]))


@given(vectors, st.lists(bounds, min_size=12, max_size=12), st.sampled_from(BOX_UPDATES), st.booleans())
def test_the_box_keeps_its_bounds(
    point: Tensor, limits: list[tuple[float, float]], update: BoxUpdate, one: bool
) -> None:
    """One pair of numbers for all coordinates, or a tensor for each bound; no rounding leaves them."""
    lows, highs = torch.tensor(limits[: len(point)], dtype=torch.float64).unbind(1)
    low, high = (lows[0].item(), highs[0].item()) if one else (lows, highs)
    domain = Box(update, low=low, high=high)
    z = domain.enter(point[None])
    for direction in (-point, point, -1e4 * point):
        z = domain.step(z, direction[None])
        y = domain.output(z)
        assert bool(((y >= low) & (y <= high)).all())
        assert domain.contains(y).tolist() == [True]


def test_the_updates_of_a_box_between_bounds_by_value() -> None:
    start, g = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    low, high = torch.tensor([-2.0, 0.0, 1.0, 5.0], dtype=torch.float64), torch.tensor(7.0, dtype=torch.float64)

    def after(update: BoxUpdate) -> Tensor:
        domain = Box(update, low=low, high=high)
        return domain.output(domain.step(domain.enter(start), 0.3 * g))

    clipped = torch.minimum(torch.maximum(start, low), high)
    assert torch.equal(after("projected"), torch.minimum(torch.maximum(clipped - 0.3 * g, low), high))
    for update in ("logits", "through_logits"):
        expected = low + (high - low) * torch.sigmoid(start - 0.3 * g)
        torch.testing.assert_close(after(update), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("update", BOX_UPDATES)
def test_tangents_of_a_box_vanish_on_its_faces(update: BoxUpdate) -> None:
    domain = Box(update, low=-1.0, high=3.0)
    y, e = torch.tensor([[-1.0, 0.0, 3.0]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    inside = 1.0 if update == "projected" else math.sqrt(1.0 * 3.0)
    assert domain.lift(y, e).tolist() == [[0.0, pytest.approx(inside), 0.0]]
    assert domain.lower(y, e).tolist() == [[0.0, pytest.approx(inside), 0.0]]


@pytest.mark.parametrize("low", [-1.5, torch.tensor(-1.5)], ids=["number", "tensor"])
def test_the_minimum_over_a_box_is_the_clipped_one(low: float | Tensor) -> None:
    """E = ½‖y − c‖² over [low, 2]: y = Clip[c], from every update."""
    centre = torch.tensor([[-4.0, -1.0, 1.0, 9.0]], dtype=torch.float64)
    energy = Quadratic(torch.eye(4, dtype=torch.float64))
    for update in BOX_UPDATES:
        minimizer = spen.Minimizer(Box(update, low=low, high=2.0), GradientDescent(1100, 1.8)).double()
        y = minimizer(energy, centre, torch.zeros_like(centre)).output
        assert torch.allclose(y, centre.clamp(-1.5, 2.0), atol=2e-2), update


def test_bounds_move_with_the_model_and_are_not_saved() -> None:
    given = torch.tensor([0.0, -1.0])
    domain = Box("projected", low=given, high=2.0).double()
    assert isinstance(domain.low, Tensor)
    assert domain.low.dtype == torch.float64
    assert domain.state_dict() == {}
    given.fill_(1.0)
    assert domain.low.tolist() == [0.0, -1.0]
    assert (
        str(Box("projected", low=-1, high=torch.tensor([1.0, 2.0])))
        == 'Box(update="projected", low=-1, high=tensor(2,))'
    )
    assert str(Box("logits", high=2)) == 'Box(update="logits", low=0, high=2)'
    assert str(Box("projected")) == 'Box(update="projected")'


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (-math.inf, 1.0), (0.0, math.nan), (torch.tensor([0.0, 2.0]), 1.0)]
)
def test_bounds_must_leave_room(low: float | Tensor, high: float) -> None:
    with pytest.raises(ValueError, match="a Box needs finite bounds with low < high, not low="):
        Box("projected", low=low, high=high)


@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (0.0, "1"), ([0.0, None], 1.0)])
def test_bounds_are_numbers(low: Any, high: Any) -> None:
    told = f"the bounds of a Box are numbers, tensors, lists or arrays, not low={low!r} and high={high!r}: for y"
    with pytest.raises(TypeError, match=re.escape(told)):
        Box("projected", low=low, high=high)


def test_bounds_are_those_of_one_example() -> None:
    """(3, 4) for y of (3, 4) would give each example bounds of its own."""
    for shape in ((3, 4), (5,), (1, 1, 4)):
        sentence = (
            rf"the Box has low of shape {re.escape(str(shape))} for y of shape \(3, 4\); a bound must broadcast to"
        )
        with pytest.raises(ValueError, match=sentence + r" one example, \(4,\)"):
            Box("projected", low=torch.zeros(shape)).enter(torch.zeros(3, 4))


@pytest.mark.parametrize("update", UPDATES)
def test_images_with_the_classes_in_dimension_one_are_images_permuted(update: SimplexUpdate) -> None:
    """(B, K, H, W) by Simplex(dim=1) is (B, H, W, K) by Simplex(), in everything a domain does."""
    images, last = Simplex(update, dim=1), Simplex(update)
    start, g, e = (torch.randn(2, 3, 4, 5, dtype=torch.float64) for _ in range(3))

    def moved(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)

    z, expected = images.enter(start), last.enter(moved(start))
    torch.testing.assert_close(moved(z), expected)
    z, expected = images.step(z, g), last.step(expected, moved(g))
    torch.testing.assert_close(moved(z), expected)
    y, expected = images.output(z), last.output(expected)
    torch.testing.assert_close(moved(y), expected)
    torch.testing.assert_close(y.sum(1), torch.ones(2, 4, 5, dtype=torch.float64))
    torch.testing.assert_close(moved(images.lift(y, e)), last.lift(expected, moved(e)))
    torch.testing.assert_close(moved(images.lower(y, e)), last.lower(expected, moved(e)))
    torch.testing.assert_close(moved(project_simplex(g, 1)), project_simplex(moved(g)))
    assert images.contains(y).tolist() == [True, True]
    assert last.contains(y).tolist() == [False, False]
    torch.testing.assert_close(Simplex(update, dim=-3).output(z), y)


@pytest.mark.parametrize("update", UPDATES)
def test_a_descent_over_images_is_that_over_permuted_images(update: SimplexUpdate) -> None:
    start = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64)

    def gradients(dim: int, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        leaf = scores.clone().requires_grad_()
        minimizer = spen.Minimizer(Simplex(update, dim=dim), Momentum(5, 0.3, decay=0.5), Checkpointed())
        y = minimizer(EntropySmoothed(Linear(), 0.5), leaf.permute(order), start.permute(order)).output
        (bar,) = torch.autograd.grad(y.square().sum(), [leaf])
        return y, bar

    images, last = gradients(1, (0, 1, 2, 3)), gradients(-1, (0, 2, 3, 1))
    torch.testing.assert_close(images[0].permute(0, 2, 3, 1), last[0])
    torch.testing.assert_close(images[1], last[1])


def test_the_classes_are_not_in_the_batch() -> None:
    with pytest.raises(
        ValueError, match=r"dim must be the dimension of y that holds the classes, not 0; dimension 0 is"
    ):
        Simplex(dim=0)
    for dim, shape in ((-1, (3,)), (2, (3, 4)), (-2, (3, 4))):
        sentence = (
            rf"the Simplex holds the classes in dimension {dim}, but Init returned shape {re.escape(str(shape))}, whose"
        )
        with pytest.raises(ValueError, match=sentence):
            Simplex(dim=dim).enter(torch.zeros(shape))


def test_domains_know_what_they_contain() -> None:
    y = torch.tensor([[0.25, 0.75], [0.5, 0.6], [-0.5, 1.5], [math.nan, 1.0], [math.inf, 0.0]])
    assert Reals().contains(y).tolist() == [True, True, True, False, False]
    assert Box("projected").contains(y).tolist() == [True, True, False, False, False]
    assert Box("projected", low=-1.0, high=torch.tensor([0.3, 2.0])).contains(y).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert Simplex().contains(y).tolist() == [True, False, False, False, False]
