"""Arcs above words."""

from __future__ import annotations

from xml.etree import ElementTree

from spen.tasks.srl.drawing import PLAIN, RIGHT, WRONG, Arc, draw_arcs, draw_proposition
from spen.tasks.srl.sentences import Argument, Proposition, Sentence

SENTENCE = Sentence(words=("Ann", "sold", "<the", "old", "boat"))
FOUND = Proposition(1, "sell", (Argument(0, 1, "A0"), Argument(1, 2, "V"), Argument(2, 5, "A1")))


def test_a_proposition_has_its_words_and_an_arc_for_every_argument() -> None:
    svg = draw_proposition(SENTENCE, FOUND)
    root = ElementTree.fromstring(svg)
    words = [t.text for t in root.iter("text") if t.get("class") != "role"]
    labels = [t.text for t in root.iter("text") if t.get("class") == "role"]
    assert words == ["Ann", "sold", "<the", "old", "boat"]
    assert sorted(label or "" for label in labels) == ["A0", "A1"]
    assert len(list(root.iter("path"))) == 2
    bold = [t.text for t in root.iter("text") if t.get("font-weight") == "700"]
    assert bold == ["sold"]
    assert PLAIN in svg
    assert "data-t" not in svg


def test_colours_say_what_gold_has() -> None:
    gold = Proposition(1, "sell", (Argument(0, 1, "A0"), Argument(1, 2, "V"), Argument(2, 5, "A2")))
    root = ElementTree.fromstring(draw_proposition(SENTENCE, FOUND, gold))
    colours = {t.text: t.get("fill") for t in root.iter("text") if t.get("class") == "role"}
    assert colours == {"A0": RIGHT, "A1": WRONG}


def test_frames_share_heights_and_are_groups() -> None:
    near, far = Arc(2, 3, "A1 .40", strength=0.4), Arc(2, 5, "A1 .55", WRONG, 0.55, "breaks a constraint: overlap")
    svg = draw_arcs(SENTENCE, 1, [[near, far], [far]])
    root = ElementTree.fromstring(svg)
    groups = {g.get("data-t"): g for g in root.iter("g") if g.get("data-t") is not None}
    assert set(groups) == {"0", "1"}
    heights = [{t.text: t.get("y") for t in group.iter("text")}.get("A1 .55") for group in (groups["0"], groups["1"])]
    assert heights[0] is not None
    assert heights[0] == heights[1]
    assert "breaks a constraint: overlap" in [t.text for t in root.iter("title")]


def test_a_likely_arc_is_stronger_than_an_unlikely_one() -> None:
    root = ElementTree.fromstring(draw_arcs(SENTENCE, 1, [[Arc(0, 1, "weak", strength=0.1), Arc(2, 3, "sure")]]))
    opacity = [float(g.get("opacity", "1")) for g in root.iter("g") if g.find("path") is not None]
    assert opacity[0] < 0.3
    assert opacity[1] == 1.0


def test_lines_under_overlapping_spans_do_not_meet() -> None:
    root = ElementTree.fromstring(draw_arcs(SENTENCE, 1, [[Arc(2, 3, "a"), Arc(2, 5, "b"), Arc(0, 1, "c")]]))
    lines = [(line.get("x1"), line.get("x2"), line.get("y1")) for line in root.iter("line")]
    assert len({y for *_, y in lines}) == 2
    assert len(set(lines)) == 3


def test_a_sentence_without_arcs_is_its_words() -> None:
    root = ElementTree.fromstring(draw_arcs(SENTENCE, 1, [[]]))
    assert len(list(root.iter("text"))) == 5
    assert not list(root.iter("path"))
