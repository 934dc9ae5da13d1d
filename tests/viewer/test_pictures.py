"""Colours on a scale, gaps in grey, large images averaged down."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from PIL import Image

from spen.viewer.pictures import LONGEST, Scale, legend, paint, shrunk


def pixels(address: str) -> np.ndarray:
    head, _, body = address.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))).convert("RGB"))


def test_colours_follow_the_scale_and_gaps_are_grey() -> None:
    scale = Scale("depth", "gray", 1.0, 3.0)
    image = pixels(paint(np.array([[1.0, 2.0, 3.0], [0.0, 9.0, np.nan]]), scale))
    assert image[0, :, 0].tolist() == [0, 128, 255]
    assert image[1, :2, 0].tolist() == [0, 255]  # beyond the ends: the ends
    assert image[1, 2].tolist() == [128, 132, 140]


def test_the_colour_map_is_the_scale_s() -> None:
    values = np.array([[0.0, 1.0]])
    blue_red = pixels(paint(values, Scale("error", "RdBu", 0.0, 1.0)))
    assert blue_red[0, 0, 0] > blue_red[0, 0, 2]
    assert blue_red[0, 1, 0] < blue_red[0, 1, 2]


def test_shrinking_averages_what_is_known() -> None:
    values = np.array([[1.0, 3.0, np.nan, np.nan], [np.nan, 5.0, np.nan, np.nan]])
    np.testing.assert_allclose(shrunk(values, 2), [[3.0, np.nan]])
    assert shrunk(values, 4) is values
    large = shrunk(np.ones((LONGEST * 2 + 1, 10)))
    assert max(large.shape) <= LONGEST
    assert pixels(paint(np.zeros((LONGEST * 3, 30)), Scale("x", "gray", 0, 1))).shape[0] <= LONGEST


def test_a_scale_of_no_width_is_drawn_all_the_same() -> None:
    assert pixels(paint(np.full((2, 2), 5.0), Scale("flat", "gray", 5.0, 5.0))).shape == (2, 2, 3)


def test_the_legend_has_the_numbers_in_their_unit() -> None:
    shown = re.findall(r"<span>([^<]*)</span>", legend(Scale("depth", "magma", 0.25, 1.0, 4.0, "m")))
    assert shown == ["1.0 m", "2.5 m", "4.0 m"]
    error = Scale("error", "RdBu", -0.1, 0.1, 4000.0, "mm", 0)
    assert re.findall(r"<span>([^<]*)</span>", legend(error, signed=True)) == ["−400 mm", "0 mm", "+400 mm"]
    assert "linear-gradient" in legend(error)
