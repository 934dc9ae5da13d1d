"""Inline SVG: the words of a sentence in a row, and arcs from a verb to its arguments above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import NamedTuple

from spen.tasks.srl.sentences import Proposition, Sentence

RIGHT, WRONG, PLAIN = "#1a7f37", "#cf222e", "#6e7781"
_LETTER, _GAP, _LEVEL, _UNDER = 8.0, 9, 21, 5
Span = tuple[int, int]


@dataclass(frozen=True)
class Arc:
    """An arc from the verb to the words [start, end), with its label, colour and strength."""

    start: int
    end: int
    label: str
    colour: str = PLAIN
    strength: float = 1.0  # 0 … 1
    hint: str = ""  # shown when the pointer rests on the arc


class _Place(NamedTuple):
    """The coordinates of an arc."""

    foot: float  # x where it leaves the verb
    middle: float  # x above its words
    left: float  # edges of its words
    right: float
    top: float  # y of its top, of the words and of the line under them
    base: float
    under: float


def draw_proposition(sentence: Sentence, found: Proposition, gold: Proposition | None = None) -> str:
    """Words in a row, an arc from the verb to every argument; green where gold has the same, red where not."""
    arcs = []
    for a in found.arguments:
        colour = PLAIN if gold is None else RIGHT if a in gold.arguments else WRONG
        arcs.append(Arc(a.start, a.end, a.role, colour))
    return draw_arcs(sentence, found.predicate, [arcs])


def draw_arcs(sentence: Sentence, predicate: int, frames: Sequence[Sequence[Arc]]) -> str:
    """Arcs above the words. Several frames share the words, and a span keeps its height in all of them.

    Of several, frame t is a group with `data-t="t"`, and the page shows one group at a time.
    """
    right = list(accumulate(_GAP + _LETTER * len(word) for word in sentence.words))
    left = [edge - _LETTER * len(word) for edge, word in zip(right, sentence.words, strict=True)]
    verb = (left[predicate] + right[predicate]) / 2
    middle = {(a.start, a.end): (left[a.start] + right[a.end - 1]) / 2 for arcs in frames for a in arcs}
    spans = sorted(middle, key=lambda span: (abs(middle[span] - verb), span))
    row, foot = _rows(spans), _feet(spans, predicate, verb, (right[predicate] - left[predicate]) / 2)
    height = _LEVEL * (len(spans) + 1)
    place = {
        s: _Place(
            foot[s], middle[s], left[s[0]], right[s[1] - 1], height - k * _LEVEL, height, height + 22 + _UNDER * row[s]
        )
        for k, s in enumerate(spans, 1)
    }
    words = "".join(
        f'<text x="{left[i]:.0f}" y="{height + 16:.0f}" fill="currentColor" '
        f'font-weight="{700 if i == predicate else 400}">{escape(word)}</text>'
        for i, word in enumerate(sentence.words)
    )
    groups = []
    for t, arcs in enumerate(frames):
        ordered = sorted(arcs, key=lambda arc: arc.strength)
        drawn = "".join(draw(arc, place[arc.start, arc.end]) for draw in (_curve, _label) for arc in ordered)
        groups.append(f'<g data-t="{t}">{drawn}</g>' if len(frames) > 1 else drawn)
    width, bottom = right[-1] + _GAP, height + 24 + _UNDER * (max(row.values(), default=0) + 1)
    return (
        f'<svg class="arcs" viewBox="0 0 {width:.0f} {bottom:.0f}" width="{width:.0f}" height="{bottom:.0f}" '
        f'font-family="ui-monospace, monospace" font-size="13">{words}{"".join(groups)}</svg>'
    )


def _curve(arc: Arc, p: _Place) -> str:
    """The arc, flat on top so that it does not cross the labels of the arcs below, and a line under its words."""
    bend = min(9.0, abs(p.middle - p.foot) / 2)
    turn = bend if p.middle > p.foot else -bend
    return (
        f'<g opacity="{_opacity(arc):.2f}">{_hint(arc)}'
        f'<path d="M{p.foot:.1f},{p.base:.0f} V{p.top + bend:.1f} Q{p.foot:.1f},{p.top} {p.foot + turn:.1f},{p.top} '
        f'H{p.middle - turn:.1f} Q{p.middle:.1f},{p.top} {p.middle:.1f},{p.top + bend:.1f} V{p.base:.0f}" '
        f'fill="none" stroke="{arc.colour}" stroke-width="{0.8 + 1.4 * arc.strength:.1f}"/>'
        f'<line x1="{p.left:.0f}" x2="{p.right:.0f}" y1="{p.under:.0f}" y2="{p.under:.0f}" '
        f'stroke="{arc.colour}" stroke-width="2"/></g>'
    )


def _label(arc: Arc, p: _Place) -> str:
    """The label on top of the arc, outlined in the colour of the page, since other arcs pass behind it."""
    return (
        f'<text x="{(p.foot + p.middle) / 2:.0f}" y="{p.top - 4:.0f}" fill="{arc.colour}" text-anchor="middle" '
        f'class="role" font-size="11" opacity="{min(1.0, 0.3 + _opacity(arc)):.2f}" '
        f'stroke="var(--body-background-fill, white)" stroke-width="5" '
        f'stroke-linejoin="round" paint-order="stroke">{escape(arc.label)}{_hint(arc)}</text>'
    )


def _opacity(arc: Arc) -> float:
    # Unlikely arcs stay visible: the descent may still change them.
    return 0.18 + 0.82 * arc.strength


def _hint(arc: Arc) -> str:
    return f"<title>{escape(arc.hint)}</title>" if arc.hint else ""


def _feet(spans: Sequence[Span], predicate: int, verb: float, half: float) -> dict[Span, float]:
    """The x at which each arc leaves the verb, `spans` nearest first: the nearest outermost, so that arcs nest."""
    foot: dict[Span, float] = {}
    for side in (-1, 1):
        mine = [span for span in spans if (span[0] > predicate) == (side > 0)]
        step = min(7.0, half / (len(mine) + 1))
        foot |= {span: verb + side * step * (len(mine) - number) for number, span in enumerate(mine)}
    return foot


def _rows(spans: Sequence[Span]) -> dict[Span, int]:
    """For every span the first line below the words where it meets no other; shorter spans are higher."""
    row: dict[Span, int] = {}
    for start, end in sorted(spans, key=lambda s: (s[1] - s[0], s)):
        taken = {r for (s, e), r in row.items() if s < end and start < e}
        row[start, end] = next(r for r in range(len(taken) + 1) if r not in taken)
    return row
