"""The slider shows one iterate at a time, and text stays text."""

from __future__ import annotations

import re

from spen.viewer.iterates import data_t, mistake, note, with_slider


def test_there_is_a_rule_for_every_iterate() -> None:
    html = with_slider(["<p data-t='0'>a</p>"], 3)
    assert 'type="range" min="0" max="3" step="1" value="3"' in html
    assert 'data-at="3"' in html
    for t in range(4):
        assert f'.iterates[data-at="{t}"] [data-t~="{t}"]{{display:revert}}' in html
    assert re.findall(r'<b data-t="\d">([^<]*)</b>', html) == [f"iteration {t} of 3" for t in range(4)]


def test_an_answer_without_iterations_has_no_slider() -> None:
    html = with_slider(["<p data-t='0'>a</p>"], 0)
    assert "<input" not in html
    assert '.iterates[data-at="0"] [data-t~="0"]{display:revert}' in html


def test_long_descents_play_faster() -> None:
    pace = [int(re.findall(r'data-pace="(\d+)"', with_slider([], last))[0]) for last in (3, 20, 200)]
    assert pace == sorted(pace, reverse=True)
    assert pace[-1] == 150


def test_the_last_iterate_of_a_short_descent_stays() -> None:
    assert data_t(2, 5, ended=3) == "2"
    assert data_t(3, 5, ended=3) == "3 4 5"


def test_a_mistake_is_one_sentence_and_is_announced() -> None:
    assert mistake("no\n such  <file>") == '<div class="mistake" role="alert">no such &lt;file&gt;</div>'
    assert note("a & b") == '<p class="note">a &amp; b</p>'
