"""Domains by value: projections against their optimality conditions, logits of any size, updates against formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spen.domains import Box, Reals, Simplex, project_simplex
from spen.domains.simplex import SimplexUpdate

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
    box = Box()
    assert torch.equal(box.step(box.enter(logits), 0.3 * g), (logits.clamp(0, 1) - 0.3 * g).clamp(0, 1))
    assert torch.equal(Reals().step(logits, 0.3 * g), logits - 0.3 * g)


def test_clipping_sends_exactly_zero_gradient() -> None:
    """Why the paper does not use it (Sec. 4.1)."""
    z = torch.tensor([[0.5, 0.9, 0.1]], requires_grad=True)
    (bar,) = torch.autograd.grad(Box().step(z, torch.tensor([[0.1, -0.5, 0.5]])).sum(), z)
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
