"""Line charts as inline SVG for reports and the viewer, without scripts, fonts or other files.

A chart scales to the width of its container. Text and axes have the text colour of the page, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

PALETTE = ("#3b6fd4", "#d9480f", "#2b8a3e", "#8250df", "#9a6700", "#1b7c83")
_LETTER = 6.3  # width of a letter at 11 px, generously
_LEFT, _RIGHT, _TOP, _AXIS, _ROW = 58, 14, 34, 36, 16


def draw_lines(
    title: str,
    lines: Mapping[str, Sequence[float]],
    *,
    x: str = "iteration",
    first: int = 0,
    cursor: bool = False,
    size: tuple[int, int] = (420, 240),
) -> str:
    """One line for each name, with values at `first`, `first` + 1, …; values that are not finite leave a gap.

    `cursor` adds for every t a group of class `cursor` with `data-t="t"`: a vertical rule and the values there. The
    page shows one of these groups at a time.
    """
    values = [v for line in lines.values() for v in line if math.isfinite(v)]
    if not values:
        return ""
    width, height = size
    rows = _legend(lines, width) if len(lines) > 1 else []
    longest = max(len(line) for line in lines.values())
    frame = _Frame(values, first, longest, width, height - _ROW * len(rows))
    parts = [
        f'<text x="{_LEFT}" y="16" font-weight="600" font-size="12">{escape(title)}</text>',
        *frame.axes(x),
        *(frame.line(line, PALETTE[k % len(PALETTE)]) for k, line in enumerate(lines.values())),
        *(
            f'<text x="{at:.0f}" y="{height - 5 - _ROW * (len(rows) - 1 - row)}" fill="{PALETTE[k % len(PALETTE)]}">'
            f"● {escape(name)}</text>"
            for row, entries in enumerate(rows)
            for at, k, name in entries
        ),
    ]
    if cursor:
        parts += [frame.cursor(t, list(lines.values())) for t in range(longest)]
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}" fill="currentColor" font-size="11">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers within [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    start = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(start, math.floor(high / step + 1e-9) + 1)]


class _Frame:
    """Coordinates of values: x from `first` over `count` places, y over the range of the values with a margin."""

    def __init__(self, values: Sequence[float], first: int, count: int, width: int, height: int) -> None:
        low, high = min(values), max(values)
        air = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        # Counts and losses of zero lie on the axis.
        self.low, self.high = (0.0 if low == 0 else low - air), high + air
        self.marks = ticks(self.low, self.high)
        self.whole = all(v == round(v) for v in values)
        if self.whole:
            self.marks = [v for v in self.marks if v == round(v)]
        self.first, self.count = first, count
        self.right, self.bottom = width - _RIGHT, height - _AXIS
        self.inset = 10 if count > 1 else (self.right - _LEFT) / 2

    def x(self, t: float) -> float:
        return _LEFT + self.inset + (self.right - _LEFT - 2 * self.inset) * t / max(self.count - 1, 1)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - _TOP) * (value - self.low) / (self.high - self.low)

    def axes(self, name: str) -> list[str]:
        parts = []
        for value in self.marks:
            y = self.y(value)
            parts.append(
                f'<line x1="{_LEFT}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".13"/>'
                f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_number(value, _digits(self.marks))}</text>'
            )
        last = self.first + self.count - 1
        for place in (round(v) for v in ticks(self.first, last, min(8, max(self.count - 1, 1))) if v == round(v)):
            at = self.x(place - self.first)
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{self.bottom}" y2="{self.bottom + 4}" stroke="currentColor" '
                f'opacity=".5"/><text x="{at:.1f}" y="{self.bottom + 16}" text-anchor="middle">{place}</text>'
            )
        middle = (_LEFT + self.right) / 2
        parts.append(
            f'<line x1="{_LEFT}" x2="{self.right}" y1="{self.bottom}" y2="{self.bottom}" stroke="currentColor" '
            f'opacity=".5"/><text x="{middle:.0f}" y="{self.bottom + 31}" text-anchor="middle" opacity=".75">'
            f"{escape(name)}</text>"
        )
        return parts

    def line(self, line: Sequence[float], colour: str) -> str:
        known = [(self.x(t), self.y(v)) for t, v in enumerate(line) if math.isfinite(v)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
        dots = (
            "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in known)
            if len(known) <= 25
            else ""
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>{dots}'

    def cursor(self, t: int, lines: Sequence[Sequence[float]]) -> str:
        at = self.x(t)
        shown = []
        # A line that ended earlier keeps its last value.
        here = [line[min(t, len(line) - 1)] for line in lines]
        digits = (
            0 if all(v == round(v) for line in lines for v in line if math.isfinite(v)) else _digits(self.marks) + 1
        )
        for k, (line, value) in enumerate(zip(lines, here, strict=True)):
            if math.isfinite(value):
                x = self.x(min(t, len(line) - 1))
                colour = PALETTE[k % len(PALETTE)]
                shown.append(
                    f'<circle cx="{x:.1f}" cy="{self.y(value):.1f}" r="5" fill="none" stroke="{colour}" '
                    f'stroke-width="2"/><text x="{self.right - 66 * (len(lines) - 1 - k)}" y="16" text-anchor="end" '
                    f'fill="{colour}" font-weight="600">{_number(value, digits)}</text>'
                )
        return (
            f'<g class="cursor" data-t="{self.first + t}"><line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" '
            f'y2="{self.bottom}" stroke="currentColor" opacity=".45" stroke-dasharray="3 3"/>{"".join(shown)}</g>'
        )


def _legend(lines: Mapping[str, Sequence[float]], width: int) -> list[list[tuple[float, int, str]]]:
    """(place, number, name) of every line, in as many rows as it takes."""
    rows: list[list[tuple[float, int, str]]] = [[]]
    at = float(_LEFT)
    for k, name in enumerate(lines):
        needed = _LETTER * (len(name) + 2) + 14
        if rows[-1] and at + needed > width:
            rows.append([])
            at = float(_LEFT)
        rows[-1].append((at, k, name))
        at += needed
    return rows


def _digits(marks: Sequence[float]) -> int:
    """Decimals that distinguish neighbouring marks."""
    gap = min((b - a for a, b in pairwise(marks)), default=abs(marks[0]) if marks and marks[0] else 1.0)
    return max(0, -math.floor(math.log10(gap) + 1e-9))


def _number(value: float, digits: int) -> str:
    """With the minus sign of typography; very large and very small numbers in scientific notation."""
    if value and (abs(value) >= 1e6 or digits > 5):
        return f"{value:.3g}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")
