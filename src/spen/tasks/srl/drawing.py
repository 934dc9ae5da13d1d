"""Inline SVG: a proposition with its arcs, and lines over the iterations of a descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from spen.tasks.srl.sentences import Argument, Proposition, Sentence

__all__ = ["draw_lines", "draw_proposition"]

RIGHT, WRONG, PLAIN = "#1a7f37", "#cf222e", "#57606a"
PALETTE = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#9a6700", "#1b7c83")
_LETTER, _GAP, _LEVEL = 7.6, 8, 26


def draw_proposition(sentence: Sentence, found: Proposition, gold: Proposition | None = None) -> str:
    """Words in a row, an arc from the verb to every argument; green where gold has the same, red where not."""
    left, right = _places(sentence)
    truth = set(gold.arguments) if gold is not None else None
    arguments = sorted(found.arguments, key=lambda a: abs(_middle(left, right, a) - left[found.predicate]))
    height = _LEVEL * (len(arguments) + 1)
    verb = (left[found.predicate] + right[found.predicate]) / 2
    parts = []
    for level, argument in enumerate(arguments, 1):
        colour = PLAIN if truth is None else RIGHT if argument in truth else WRONG
        middle, top = _middle(left, right, argument), height - level * _LEVEL
        parts.append(
            f'<path d="M{verb:.0f},{height} C{verb:.0f},{top} {middle:.0f},{top} {middle:.0f},{height}" fill="none" '
            f'stroke="{colour}" stroke-width="1.5"/>'
            f'<text x="{(verb + middle) / 2:.0f}" y="{height - 0.75 * (height - top) - 3:.0f}" fill="{colour}" '
            f'text-anchor="middle" class="role">{escape(argument.role)}</text>'
            f'<line x1="{left[argument.start]:.0f}" x2="{right[argument.end - 1]:.0f}" y1="{height + 22}" '
            f'y2="{height + 22}" stroke="{colour}" stroke-width="2"/>'
        )
    words = "".join(
        f'<text x="{left[i]:.0f}" y="{height + 16}" font-weight="{700 if i == found.predicate else 400}">'
        f"{escape(word)}</text>"
        for i, word in enumerate(sentence.words)
    )
    width = right[-1] + _GAP
    return f'<svg class="arcs" width="{width:.0f}" height="{height + 30}">{words}{"".join(parts)}</svg>'


def draw_lines(title: str, lines: Mapping[str, Sequence[float]], *, width: int = 420, height: int = 220) -> str:
    """One line a name over t = 0 … T, with the smallest and the largest value at the axis."""
    values = [v for line in lines.values() for v in line]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low or 1.0
    x0, y0, w, h = 60, 30, width - 80, height - 60
    parts = [
        f'<text x="{x0}" y="18" font-weight="bold">{escape(title)}</text>',
        f'<text x="{x0 - 6}" y="{y0 + 5}" text-anchor="end">{high:.4g}</text>',
        f'<text x="{x0 - 6}" y="{y0 + h + 5}" text-anchor="end">{low:.4g}</text>',
        f'<rect x="{x0}" y="{y0}" width="{w}" height="{h}" fill="none" stroke="#d0d7de"/>',
    ]
    for k, (name, line) in enumerate(lines.items()):
        colour, last = PALETTE[k % len(PALETTE)], max(len(line) - 1, 1)
        points = " ".join(f"{x0 + w * t / last:.1f},{y0 + h * (high - v) / span:.1f}" for t, v in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x0 + 6 + 110 * k}" y="{height - 8}" fill="{colour}">{escape(name)}</text>')
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def _places(sentence: Sentence) -> tuple[list[float], list[float]]:
    left, right, at = [], [], float(_GAP)
    for word in sentence.words:
        left.append(at)
        at += _LETTER * len(word)
        right.append(at)
        at += _GAP
    return left, right


def _middle(left: Sequence[float], right: Sequence[float], argument: Argument) -> float:
    return (left[argument.start] + right[argument.end - 1]) / 2
