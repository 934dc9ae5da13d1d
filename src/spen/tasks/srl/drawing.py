"""Inline SVG: the words of a sentence in a row, and arcs from a verb to its arguments above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from spen.tasks.srl.sentences import Argument, Proposition, Sentence

__all__ = ["PLAIN", "RIGHT", "WRONG", "Arc", "draw_arcs", "draw_proposition"]

RIGHT, WRONG, PLAIN = "#1a7f37", "#cf222e", "#6e7781"
_LETTER, _GAP, _LEVEL, _UNDER = 8.0, 9, 21, 5


@dataclass(frozen=True)
class Arc:
    """An arc from the verb to the words [start, end), with its label, colour and strength."""

    start: int
    end: int
    label: str
    colour: str = PLAIN
    strength: float = 1.0  # 0 … 1
    hint: str = ""  # shown when the pointer rests on the arc

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


def draw_proposition(sentence: Sentence, found: Proposition, gold: Proposition | None = None) -> str:
    """Words in a row, an arc from the verb to every argument; green where gold has the same, red where not."""
    truth = set(gold.arguments) if gold is not None else None
    return draw_arcs(sentence, found.predicate, [[_arc(argument, truth) for argument in found.arguments]])


def _arc(argument: Argument, truth: set[Argument] | None) -> Arc:
    colour = PLAIN if truth is None else RIGHT if argument in truth else WRONG
    return Arc(argument.start, argument.end, argument.role, colour)


def draw_arcs(sentence: Sentence, predicate: int, frames: Sequence[Sequence[Arc]]) -> str:
    """Arcs above the words. Several frames share the words, and a span keeps its height in all of them.

    Of several, frame t is a group with `data-t="t"`, and the page shows one group at a time.
    """
    left, right = _places(sentence)
    verb = (left[predicate] + right[predicate]) / 2
    spans = sorted(
        {arc.span for arcs in frames for arc in arcs}, key=lambda s: (abs(_middle(left, right, s) - verb), s)
    )
    level = {span: number for number, span in enumerate(spans, 1)}
    row, foot = _rows(spans), _feet(spans, predicate, verb, (right[predicate] - left[predicate]) / 2)
    height = _LEVEL * (len(spans) + 1)
    words = "".join(
        f'<text x="{left[i]:.0f}" y="{height + 16:.0f}" fill="currentColor" '
        f'font-weight="{700 if i == predicate else 400}">{escape(word)}</text>'
        for i, word in enumerate(sentence.words)
    )
    groups = []
    for t, arcs in enumerate(frames):
        ordered = sorted(arcs, key=lambda arc: arc.strength)
        drawn = "".join(_curve(a, foot[a.span], left, right, height, level[a.span], row[a.span]) for a in ordered)
        drawn += "".join(_label(a, foot[a.span], left, right, height, level[a.span]) for a in ordered)
        groups.append(f'<g data-t="{t}">{drawn}</g>' if len(frames) > 1 else drawn)
    width, bottom = right[-1] + _GAP, height + 24 + _UNDER * (max(row.values(), default=0) + 1)
    return (
        f'<svg class="arcs" viewBox="0 0 {width:.0f} {bottom:.0f}" width="{width:.0f}" height="{bottom:.0f}" '
        f'font-family="ui-monospace, monospace" font-size="13">{words}{"".join(groups)}</svg>'
    )


def _curve(
    arc: Arc, foot: float, left: Sequence[float], right: Sequence[float], height: float, level: int, row: int
) -> str:
    """The arc, flat on top so that it does not cross the labels of the arcs below, and a line under its words."""
    middle, top = _middle(left, right, arc.span), height - level * _LEVEL
    bend = min(9.0, abs(middle - foot) / 2)
    turn = bend if middle > foot else -bend
    under = height + 22 + _UNDER * row
    return (
        f'<g opacity="{_opacity(arc):.2f}">{_hint(arc)}'
        f'<path d="M{foot:.1f},{height:.0f} V{top + bend:.1f} Q{foot:.1f},{top} {foot + turn:.1f},{top} '
        f'H{middle - turn:.1f} Q{middle:.1f},{top} {middle:.1f},{top + bend:.1f} V{height:.0f}" '
        f'fill="none" stroke="{arc.colour}" stroke-width="{0.8 + 1.4 * arc.strength:.1f}"/>'
        f'<line x1="{left[arc.start]:.0f}" x2="{right[arc.end - 1]:.0f}" y1="{under:.0f}" y2="{under:.0f}" '
        f'stroke="{arc.colour}" stroke-width="2"/></g>'
    )


def _label(arc: Arc, foot: float, left: Sequence[float], right: Sequence[float], height: float, level: int) -> str:
    """The label on top of the arc, outlined in the colour of the page, since other arcs pass behind it."""
    x, y = (foot + _middle(left, right, arc.span)) / 2, height - level * _LEVEL - 4
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{arc.colour}" text-anchor="middle" class="role" font-size="11" '
        f'opacity="{min(1.0, 0.3 + _opacity(arc)):.2f}" stroke="var(--body-background-fill, white)" stroke-width="5" '
        f'stroke-linejoin="round" paint-order="stroke">{escape(arc.label)}{_hint(arc)}</text>'
    )


def _opacity(arc: Arc) -> float:
    # Unlikely arcs stay visible: the descent may still change them.
    return 0.18 + 0.82 * arc.strength


def _hint(arc: Arc) -> str:
    return f"<title>{escape(arc.hint)}</title>" if arc.hint else ""


def _feet(spans: Sequence[tuple[int, int]], predicate: int, verb: float, half: float) -> dict[tuple[int, int], float]:
    """The x at which each arc leaves the verb, `spans` nearest first: the nearest outermost, so that arcs nest."""
    foot: dict[tuple[int, int], float] = {}
    for side in (-1, 1):
        mine = [span for span in spans if (span[0] > predicate) == (side > 0)]
        step = min(7.0, half / (len(mine) + 1))
        foot |= {span: verb + side * step * (len(mine) - number) for number, span in enumerate(mine)}
    return foot


def _rows(spans: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """For every span the first line below the words where it meets no other; shorter spans lie higher."""
    row: dict[tuple[int, int], int] = {}
    for start, end in sorted(spans, key=lambda s: (s[1] - s[0], s)):
        taken = {r for (s, e), r in row.items() if s < end and start < e}
        row[start, end] = next(r for r in range(len(taken) + 1) if r not in taken)
    return row


def _places(sentence: Sentence) -> tuple[list[float], list[float]]:
    left, right, at = [], [], float(_GAP)
    for word in sentence.words:
        left.append(at)
        at += _LETTER * len(word)
        right.append(at)
        at += _GAP
    return left, right


def _middle(left: Sequence[float], right: Sequence[float], span: tuple[int, int]) -> float:
    return (left[span[0]] + right[span[1] - 1]) / 2
