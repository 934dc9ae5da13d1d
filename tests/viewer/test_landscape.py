"""Slices: where the path lies in them, and energies by value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spen.domains import Box, Simplex
from spen.energies import Energy, EntropySmoothed, Linear
from spen.viewer.landscape import figure, picture, slice_energy
from tests.viewer.worlds import Bowl, model

START = torch.tensor([[2.0, 1.0]])
BOWL = Bowl([1.0, 5.0], [0.0, 0.0])


def test_the_path_begins_at_zero_and_ends_at_one() -> None:
    sliced = slice_energy(model(BOWL), START, size=5)
    np.testing.assert_allclose(sliced.path[0], [0, 0], atol=1e-12)
    np.testing.assert_allclose(sliced.path[-1], [1, 0], atol=1e-12)
    assert sliced.path[1, 1] > 0.05  # it bends to the side that is drawn above
    assert sliced.captured == pytest.approx(1.0)
    assert len(sliced.path_energies) == 5


def test_a_plane_of_two_numbers_holds_the_true_energies() -> None:
    """In two dimensions the plane is the whole space: its corners can be scored by hand."""
    spen = model(BOWL)
    trajectory = spen(START)
    along = (trajectory.output - trajectory.start)[0].double().detach()
    sliced = slice_energy(spen, START, size=7)
    bend = (trajectory.outputs[0] - trajectory.start)[0].double().detach()
    across = torch.tensor([-along[1], along[0]])
    across = across * torch.sign(across @ bend)
    for row, b in enumerate(sliced.b):
        for column, a in enumerate(sliced.a):
            y = START[0].double() + a * along + b * across
            assert sliced.energies[row, column] == pytest.approx(0.5 * float(y[0] ** 2 + 5 * y[1] ** 2), rel=1e-5)


def test_the_line_goes_through_start_and_answer() -> None:
    for energy, domain, start in (
        (BOWL, None, START),
        (EntropySmoothed(Linear(), 2.0), Simplex(), torch.tensor([[[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]]])),
    ):
        spen = model(energy, domain, steps=1)
        with torch.no_grad():
            energies = spen(start).energies[:, 0].tolist()
        sliced = slice_energy(spen, start, size=5)
        np.testing.assert_allclose(sliced.a, [-0.5, 0, 0.5, 1, 1.5], atol=1e-12)
        np.testing.assert_allclose(sliced.line[[1, 3]], energies, rtol=1e-5)


def test_points_of_a_simplex_slice_stay_on_the_simplex() -> None:
    seen: list[Tensor] = []

    class Watching(Energy):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            seen.append(y.detach())
            return -(features * y).flatten(1).sum(1) + (y * y.clamp_min(1e-9).log()).flatten(1).sum(1)

    slice_energy(model(Watching(), Simplex()), torch.randn(1, 4, 3), size=9)
    for y in seen:
        torch.testing.assert_close(y.sum(-1), torch.ones(y.shape[:-1]))
        assert bool((y >= 0).all())


def test_a_straight_path_takes_the_steepest_side() -> None:
    tilted = Bowl([1.0, 5.0], [0.0, 1.0])
    spen = model(tilted, steps=1)
    sliced = slice_energy(spen, START, size=5)  # the second coordinate starts at its minimum and does not move
    assert sliced.path[:, 1] == pytest.approx(0.0, abs=1e-9)
    assert np.ptp(sliced.energies, axis=0).min() > 0


def test_progress_is_reported_up_to_the_end() -> None:
    shares: list[float] = []
    slice_energy(model(BOWL), START, size=5, progress=shares.append)
    assert shares[-1] == 1.0


def test_what_has_no_plane_says_so() -> None:
    with pytest.raises(ValueError, match="the descent did not move, so there is no plane to draw"):
        slice_energy(model(BOWL), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="a slice is drawn for one example, not for 2"):
        slice_energy(model(BOWL), START.expand(2, 2))
    with pytest.raises(ValueError, match="a slice needs at least 3 points a side, not 2"):
        slice_energy(model(BOWL), START, size=2)
    with pytest.raises(ValueError, match="a slice is drawn over real numbers or a simplex, not over Box"):
        slice_energy(model(BOWL, Box("projected")), START)


def test_the_figure_has_the_plane_the_path_and_the_line() -> None:
    sliced = slice_energy(model(BOWL), START, size=7)
    drawn = figure(sliced)
    plane, way = drawn.axes[:2]
    assert plane.get_xlabel() == way.get_xlabel() == "along $y_T - y_0$"
    np.testing.assert_allclose(plane.lines[-1].get_xydata(), sliced.path)
    np.testing.assert_allclose(way.lines[1].get_ydata(), sliced.path_energies)
    assert [t.get_text() for t in plane.texts] == ["$y_0$", "$y_T$"]
    html = picture(drawn, "a &amp; b")
    assert html.startswith('<img class="plot" alt="a &amp; b" src="data:image/png;base64,')
