"""A piece of furniture is a list of shapes over the floor: x across, y from its back (0) to its front, z up, metres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from spen.tasks.denoising.rooms.shapes import Array, Shape, ball, box, rod, tilt, yaw

Rng = np.random.Generator


@dataclass(frozen=True)
class Piece:
    """Shapes that move together and the box (width, depth, height) that holds them."""

    shapes: list[Shape]
    size: tuple[float, float, float]

    def placed(self, x: float, y: float, angle: float) -> Piece:
        """Turned about the middle of its back edge, then moved there."""
        rotation, shift = yaw(angle), np.array([x, y, 0.0])
        return Piece([shape.moved(rotation, shift) for shape in self.shapes], self.size)


def _legs(width: float, depth: float, height: float, thick: float, round_: bool) -> list[Shape]:
    legs = []
    for x in (-width / 2 + thick, width / 2 - thick):
        for y in (thick, depth - thick):
            if round_:
                legs.append(rod((x, y, 0), (x, y, height), thick / 2))
            else:
                legs.append(box((x - thick / 2, y - thick / 2, 0), (x + thick / 2, y + thick / 2, height)))
    return legs


def _things(rng: Rng, width: float, depth: float, height: float, count: int | np.integer) -> list[Shape]:
    """Small things on a top of the given size: mugs, bottles, bowls, books, a box, fruit."""
    shapes: list[Shape] = []
    for _ in range(int(count)):
        x, y = rng.uniform(-width / 2 + 0.1, width / 2 - 0.1), rng.uniform(0.1, max(depth - 0.1, 0.11))
        what = rng.integers(6)
        if what == 0:
            r = rng.uniform(0.03, 0.05)
            shapes += [
                rod((x, y, height), (x, y, height + 0.1), r),
                ball((x + r, y, height + 0.05), (0.02, 0.012, 0.03)),
            ]
        elif what == 1:
            r, h = rng.uniform(0.03, 0.045), rng.uniform(0.15, 0.22)
            shapes += [
                rod((x, y, height), (x, y, height + h), r),
                rod((x, y, height + h), (x, y, height + h + 0.03), r, taper=0.35),
                rod((x, y, height + h + 0.03), (x, y, height + h + 0.09), r * 0.35),
            ]
        elif what == 2:
            shapes.append(rod((x, y, height), (x, y, height + 0.07), rng.uniform(0.05, 0.08), taper=1.7))
        elif what == 3:
            z = height
            for _ in range(rng.integers(1, 5)):
                w, d, t = rng.uniform(0.07, 0.1), rng.uniform(0.1, 0.13), rng.uniform(0.015, 0.045)
                shapes.append(box((x - w, y - d, z), (x + w, y + d, z + t), yaw(rng.uniform(-0.6, 0.6))))
                z += t
        elif what == 4:
            a, b, c = rng.uniform(0.04, 0.14, 3)
            shapes.append(box((x - a, y - b, height), (x + a, y + b, height + 2 * c), yaw(rng.uniform(0, 3))))
        else:
            r = rng.uniform(0.035, 0.09)
            shapes.append(ball((x, y, height + r), r))
    return shapes


def table(rng: Rng) -> Piece:
    width, depth, height = rng.uniform(0.9, 1.5), rng.uniform(0.6, 0.85), rng.uniform(0.68, 0.78)
    top = 0.035
    if rng.random() < 0.3:
        r = rng.uniform(0.4, 0.55)
        width = depth = 2 * r
        shapes = [
            rod((0, r, height - top), (0, r, height), r),
            rod((0, r, 0.03), (0, r, height - top), 0.05),
            rod((0, r, 0), (0, r, 0.06), r * 0.55, taper=0.3),
        ]
    else:
        shapes = [
            box((-width / 2, 0, height - top), (width / 2, depth, height)),
            box((-width / 2 + 0.06, 0.06, height - 0.12), (width / 2 - 0.06, depth - 0.06, height - top)),
            *_legs(width, depth, height - top, rng.uniform(0.05, 0.08), rng.random() < 0.5),
        ]
    return Piece(
        shapes + _things(rng, width * 0.7, depth * 0.8, height, rng.integers(2, 7)), (width, depth, height + 0.2)
    )


def chair(rng: Rng) -> Piece:
    width, depth, seat, height = rng.uniform(0.4, 0.46), 0.42, rng.uniform(0.43, 0.48), rng.uniform(0.82, 1.0)
    shapes = [
        box((-width / 2, 0.02, seat - 0.04), (width / 2, depth, seat)),
        *_legs(width, depth, seat - 0.04, 0.04, rng.random() < 0.6),
    ]
    lean = tilt(rng.uniform(0.05, 0.18))
    if rng.random() < 0.5:
        for x in np.linspace(-width / 2 + 0.02, width / 2 - 0.02, rng.integers(3, 7)):
            shapes.append(box((x - 0.018, 0.0, seat), (x + 0.018, 0.03, height - 0.05), lean))
        shapes.append(box((-width / 2, -0.045, height - 0.1), (width / 2, -0.015, height), lean))
    else:
        shapes.append(box((-width / 2, -0.01, seat + 0.12), (width / 2, 0.02, height), lean))
        for x in (-width / 2 + 0.02, width / 2 - 0.02):
            shapes.append(rod((x, 0.03, seat), (x, 0.0, seat + 0.3), 0.014))
    return Piece(shapes, (width, depth, height))


def stool(rng: Rng) -> Piece:
    r, height = rng.uniform(0.15, 0.2), rng.uniform(0.42, 0.7)
    shapes = [rod((0, r, height - 0.04), (0, r, height), r)]
    for angle in np.arange(4) * np.pi / 2 + rng.uniform(0, 1.5):
        x, y = np.cos(angle), np.sin(angle)
        shapes.append(rod((1.15 * r * x, r + 1.15 * r * y, 0), (0.7 * r * x, r + 0.7 * r * y, height - 0.04), 0.017))
    return Piece(shapes, (2.3 * r, 2.3 * r, height))


def shelf(rng: Rng) -> Piece:
    width, depth, height = rng.uniform(0.6, 1.2), rng.uniform(0.26, 0.36), rng.uniform(0.9, 2.0)
    t = 0.022
    shapes = [
        box((-width / 2, 0, 0), (-width / 2 + t, depth, height)),
        box((width / 2 - t, 0, 0), (width / 2, depth, height)),
        box((-width / 2, 0, 0), (width / 2, 0.012, height)),
    ]
    levels = np.linspace(0.06, height - t, max(2, round(height / rng.uniform(0.3, 0.42))) + 1)
    for low, high in pairwise(levels):
        shapes.append(box((-width / 2, 0, low), (width / 2, depth, low + t)))
        shapes += _shelf_row(rng, width - 4 * t, depth, low + t, high - low - t)
    shapes.append(box((-width / 2, 0, height - t), (width / 2, depth, height)))
    return Piece(shapes + _things(rng, width, depth, height, rng.integers(0, 3)), (width, depth, height))


def _shelf_row(rng: Rng, width: float, depth: float, floor: float, room: float) -> list[Shape]:
    """Books in bundles (one box a few volumes thick), a leaning one, gaps, and now and then other things."""
    shapes: list[Shape] = []
    if rng.random() < 0.15:
        return _things(rng, width, depth, floor, 3) if room > 0.3 else shapes
    x = -width / 2
    while x < width / 2 - 0.05:
        chance = rng.random()
        w = rng.uniform(0.02, 0.09)
        h, d = room * rng.uniform(0.55, 0.92), min(depth * rng.uniform(0.55, 0.95), 0.28)
        if chance < 0.72:
            shapes.append(box((x, 0.015, floor), (min(x + w, width / 2), d, floor + h)))
        elif chance < 0.8:
            lean = np.array([[np.cos(0.25), 0, np.sin(0.25)], [0, 1, 0], [-np.sin(0.25), 0, np.cos(0.25)]])
            shapes.append(box((x + 0.03, 0.02, floor + 0.01), (x + 0.06, d, floor + h * 0.9), lean))
            w = 0.13
        else:
            w = rng.uniform(0.05, 0.2)
        x += w + 0.002
    return shapes


def sofa(rng: Rng, seats: int | None = None) -> Piece:
    count = int(rng.integers(2, 4)) if seats is None else seats
    width, depth, seat = count * rng.uniform(0.55, 0.68) + 0.3, rng.uniform(0.8, 0.92), rng.uniform(0.38, 0.45)
    back, arm = rng.uniform(0.75, 0.9), rng.uniform(0.55, 0.65)
    inner = width / 2 - 0.15
    shapes = [
        box((-width / 2, 0, 0.08), (width / 2, depth, seat - 0.12)),
        box((-width / 2, 0, 0.08), (width / 2, 0.18, back - 0.08)),
        *_legs(width, depth, 0.08, 0.06, True),
    ]
    for sign in (-1, 1):
        x = sign * (width / 2 - 0.075)
        shapes.append(box((x - 0.075, 0, 0.08), (x + 0.075, depth, arm - 0.075)))
        shapes.append(rod((x, 0.0, arm - 0.075), (x, depth, arm - 0.075), 0.075))
    for i in range(count):
        a, b = -inner + 2 * inner * i / count + 0.01, -inner + 2 * inner * (i + 1) / count - 0.01
        shapes.append(box((a, 0.16, seat - 0.12), (b, depth, seat - 0.02)))
        shapes.append(ball(((a + b) / 2, depth / 2 + 0.08, seat - 0.03), ((b - a) / 1.9, depth / 2.1, 0.05)))
        shapes.append(box((a, 0.15, seat), (b, 0.3, back), tilt(0.15)))
        if rng.random() < 0.6:
            turned = yaw(rng.uniform(-0.5, 0.5)) @ tilt(0.3 + rng.uniform(0, 0.3))
            shapes.append(ball(((a + b) / 2, 0.42, seat + 0.17), (0.2, 0.08, 0.18), turned))
    shapes.append(rod((-inner, 0.1, back - 0.08), (inner, 0.1, back - 0.08), 0.09))
    return Piece(shapes, (width, depth, back))


def armchair(rng: Rng) -> Piece:
    return sofa(rng, seats=1)


def bed(rng: Rng) -> Piece:
    width, depth, height = rng.uniform(0.9, 1.5), rng.uniform(1.9, 2.05), rng.uniform(0.4, 0.52)
    shapes = [
        box((-width / 2, 0, 0), (width / 2, 0.05, rng.uniform(0.8, 1.1))),
        box((-width / 2, 0.05, 0.12), (width / 2, depth, height - 0.18)),
        box((-width / 2 + 0.02, 0.05, height - 0.18), (width / 2 - 0.02, depth - 0.02, height)),
        *_legs(width, depth, 0.12, 0.07, False),
    ]
    for x in np.linspace(-width / 4, width / 4, 1 if width < 1.2 else 2):
        shapes.append(ball((x, 0.32, height + 0.05), (0.32 if width < 1.2 else 0.3, 0.2, 0.09)))
    for _ in range(5):  # a blanket's folds
        x, y = rng.uniform(-width / 3, width / 3), rng.uniform(0.8, depth - 0.3)
        turned = yaw(rng.uniform(-0.7, 0.7))
        shapes.append(
            ball((x, y, height), (rng.uniform(0.3, 0.5), rng.uniform(0.1, 0.2), rng.uniform(0.02, 0.06)), turned)
        )
    return Piece(shapes, (width, depth, 1.0))


def lamp(rng: Rng) -> Piece:
    height, r = rng.uniform(1.3, 1.75), rng.uniform(0.14, 0.24)
    shapes = [
        rod((0, r, 0), (0, r, 0.03), 0.14),
        rod((0, r, 0.03), (0, r, height - 0.15), 0.014),
        rod((0, r, height - 0.3), (0, r, height), r, taper=rng.uniform(0.45, 0.9)),
    ]
    return Piece(shapes, (2 * r, 2 * r, height))


def desk(rng: Rng) -> Piece:
    width, depth, height = rng.uniform(1.0, 1.5), rng.uniform(0.6, 0.75), 0.74
    screen, side = rng.uniform(-0.2, 0.2), rng.choice([-1, 1])
    x = side * (width / 2 - 0.22)
    shapes = [
        box((-width / 2, 0, height - 0.03), (width / 2, depth, height)),
        *_legs(width, depth, height - 0.03, 0.05, False),
        box((x - 0.2, 0.04, 0.08), (x + 0.2, depth - 0.04, height - 0.05)),
        box((screen - 0.28, 0.19, height + 0.1), (screen + 0.28, 0.22, height + 0.44), yaw(rng.uniform(-0.3, 0.3))),
        rod((screen, 0.18, height), (screen, 0.18, height + 0.25), 0.02),
        rod((screen, 0.2, height), (screen, 0.2, height + 0.015), 0.11),
        box((screen - 0.22, 0.4, height), (screen + 0.22, 0.53, height + 0.025)),
    ]
    for z in (0.2, 0.42, 0.62):
        shapes.append(box((x - 0.19, depth - 0.04, z - 0.09), (x + 0.19, depth - 0.022, z + 0.09)))
        shapes.append(rod((x - 0.06, depth - 0.01, z), (x + 0.06, depth - 0.01, z), 0.008))
    return Piece(shapes + _things(rng, width * 0.9, depth * 0.5, height, 3), (width, depth, height + 0.45))


def cupboard(rng: Rng) -> Piece:
    width, depth, height = rng.uniform(0.7, 1.2), rng.uniform(0.4, 0.6), rng.uniform(0.75, 2.0)
    doors = 2 if width < 1.0 else 3
    shapes = [
        box((-width / 2, 0, 0.06), (width / 2, depth - 0.02, height)),
        box((-width / 2 + 0.03, 0.03, 0), (width / 2 - 0.03, depth - 0.06, 0.06)),
    ]
    for i in range(doors):
        a, b = -width / 2 + width * i / doors + 0.006, -width / 2 + width * (i + 1) / doors - 0.006
        shapes.append(box((a, depth - 0.02, 0.08), (b, depth, height - 0.02)))
        knob = b - 0.05 if i % 2 == 0 else a + 0.05
        middle = min(height * 0.55, 1.05)
        shapes.append(rod((knob, depth + 0.025, middle - 0.07), (knob, depth + 0.025, middle + 0.07), 0.011))
    top = _things(rng, width, depth, height, rng.integers(1, 5)) if height < 1.3 else []
    return Piece(shapes + top, (width, depth, height + 0.1))


def counter(rng: Rng) -> Piece:
    """A kitchen counter with wall cupboards above it."""
    width, depth, height = rng.uniform(1.4, 2.1), 0.6, 0.9
    shapes = [
        box((-width / 2, 0, height - 0.04), (width / 2, depth + 0.02, height)),
        box((-width / 2, 0, 0.1), (width / 2, depth - 0.03, height - 0.04)),
        box((-width / 2, 0, 0), (width / 2, depth - 0.1, 0.1)),
        box((-width / 2, 0, 1.42), (width / 2 - rng.uniform(0, 0.5), 0.32, 2.05)),
    ]
    edges = np.linspace(-width / 2, width / 2, rng.integers(3, 5))
    for a, b in pairwise(edges):
        shapes.append(box((a + 0.006, depth - 0.03, 0.12), (b - 0.006, depth - 0.01, height - 0.06)))
        shapes.append(rod((a + 0.1, depth + 0.015, height - 0.12), (b - 0.1, depth + 0.015, height - 0.12), 0.009))
    tap = rng.uniform(-width / 3, width / 3)
    shapes += [
        rod((tap, 0.1, height), (tap, 0.1, height + 0.25), 0.015),
        rod((tap, 0.1, height + 0.24), (tap, 0.27, height + 0.2), 0.013),
    ]
    return Piece(
        shapes + _things(rng, width * 0.9, depth * 0.8, height, rng.integers(4, 8)), (width, depth + 0.03, 2.05)
    )


def plant(rng: Rng) -> Piece:
    r, height = rng.uniform(0.12, 0.18), rng.uniform(0.25, 0.35)
    shapes = [rod((0, 0.25, 0), (0, 0.25, height), r * 0.75, taper=1.35)]
    for _ in range(rng.integers(10, 18)):
        angle, up, out = rng.uniform(0, 2 * np.pi), rng.uniform(0.15, 0.9), rng.uniform(0.05, 0.24)
        tip = np.array([out * np.cos(angle), 0.25 + out * np.sin(angle), height + up])
        leaf: Array = yaw(angle) @ tilt(rng.uniform(-0.9, 0.9))
        shapes.append(ball(tip, (rng.uniform(0.07, 0.14), rng.uniform(0.03, 0.06), 0.008), leaf))
        if rng.random() < 0.5:
            shapes.append(rod((0, 0.25, height), tip, 0.006))
    return Piece(shapes, (0.5, 0.5, height + 0.9))


def crates(rng: Rng) -> Piece:
    """Cardboard boxes, one on another, at any yaw."""
    shapes, z = [], 0.0
    for _ in range(rng.integers(1, 4)):
        a, b, c = rng.uniform(0.12, 0.26), rng.uniform(0.12, 0.2), rng.uniform(0.15, 0.35)
        x, y = rng.uniform(-0.04, 0.04), 0.25 + rng.uniform(-0.04, 0.04)
        shapes.append(box((x - a, y - b, z), (x + a, y + b, z + c), yaw(rng.uniform(-0.8, 0.8))))
        z += c
    return Piece(shapes, (0.5, 0.5, z))


def toys(rng: Rng) -> Piece:
    """A ball and a bin on the floor."""
    r, bin_ = rng.uniform(0.09, 0.2), rng.uniform(0.1, 0.15)
    shapes = [ball((-0.15, 0.25, r), r), rod((0.22, 0.2, 0), (0.22, 0.2, 0.3), bin_, taper=1.25)]
    return Piece(shapes, (0.75, 0.5, 0.4))


Maker = Callable[[Rng], Piece]
WALL_PIECES: tuple[Maker, ...] = (shelf, sofa, bed, desk, cupboard, counter, shelf, cupboard, table)
FREE_PIECES: tuple[Maker, ...] = (armchair, stool, lamp, plant, crates, toys, chair, table)
