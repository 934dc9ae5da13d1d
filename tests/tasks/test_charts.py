"""Charts: round marks, gaps, cursors and legends that fit."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from spen.tasks.charts import PALETTE, draw_lines, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.5, 1.0]),
        (-34.19, -34.17, [-34.19, -34.185, -34.18, -34.175, -34.17]),
        (0.0, 10.0, [0.0, 5.0, 10.0]),
        (29.3, 38.2, [30.0, 35.0]),
        (3.0, 3.0, [3.0]),
    ],
)
def test_marks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag == "text"]


def test_a_chart_names_its_axes_and_its_lines() -> None:
    svg = draw_lines("PSNR, dB", {"dp-3": [29.0, 37.0, 38.0], "tv": [36.0, 36.0, 36.0]})
    shown = texts(svg)
    assert shown[0] == "PSNR, dB"
    assert {"30", "35", "0", "1", "2", "iteration", "● dp-3", "● tv"} <= set(shown)
    assert svg.count("<polyline") == 2
    assert PALETTE[0] in svg
    assert PALETTE[1] in svg


def test_one_line_needs_no_legend_and_the_first_place_is_a_choice() -> None:
    shown = texts(draw_lines("step sizes", {"η": [0.3, 0.2]}, x="step", first=1))
    assert {"1", "2", "step"} <= set(shown)
    assert "0" not in shown
    assert "● η" not in shown


def test_the_cursor_has_a_group_for_every_place() -> None:
    svg = draw_lines("energy", {"a": [4.0, 2.0, 1.0], "b": [3.0]}, cursor=True, first=1)
    root = ElementTree.fromstring(svg)
    groups = [g for g in root.iter("g") if g.get("class") == "cursor"]
    assert [g.get("data-t") for g in groups] == ["1", "2", "3"]
    # b has ended: its one value stays.
    assert [[t.text for t in g.iter("text")] for g in groups] == [["4", "3"], ["2", "3"], ["1", "3"]]
    assert "cursor" not in draw_lines("energy", {"a": [4.0, 2.0]})


def test_what_is_not_finite_leaves_a_gap() -> None:
    svg = draw_lines("loss", {"late": [float("nan"), 1.0, float("inf"), 2.0]}, cursor=True)
    assert len(re.findall(r'<circle[^>]*r="2.6"', svg)) == 2
    assert draw_lines("nothing", {"a": [float("nan")]}) == ""
    assert draw_lines("nothing", {}) == ""


def test_counts_stand_on_the_axis_with_whole_marks() -> None:
    assert "0.5" not in texts(draw_lines("violated", {"n": [0.0, 1.0, 0.0]}))
    assert "−1" not in texts(draw_lines("violated", {"n": [0.0, 0.0]}))


def test_numbers_keep_the_digits_that_tell_them_apart() -> None:
    svg = draw_lines("energy", {"e": [-34.175, -34.19]}, cursor=True)
    assert "−34.175" in texts(svg)
    assert "−34.1900" in texts(svg)
    assert any("e+06" in t for t in texts(draw_lines("large", {"e": [1e6, 5e6]})))


def test_long_names_go_to_another_row_and_are_escaped() -> None:
    names = {f"a rather long name of a system, number {k}": [0.0, float(k)] for k in range(3)}
    svg = draw_lines("many", {**names, "<b>": [1.0, 2.0]})
    rows = {float(y) for y in re.findall(r'y="([\d.]+)" fill="#[0-9a-f]{6}">● ', svg)}
    assert len(rows) >= 2
    assert "● &lt;b&gt;" in svg


def test_a_long_line_has_no_dots() -> None:
    assert "<circle" not in draw_lines("loss", {"a": [float(k) for k in range(40)]})


def test_the_size_is_a_choice() -> None:
    assert 'viewBox="0 0 300 200"' in draw_lines("a", {"a": [1.0]}, size=(300, 200))
