"""A frame is a pure function of (split, index, seed): a furnished room, ray-cast from a pose to depth in metres.

The split is part of the seed, so no room is in two splits. Frames index·POSES … index·POSES + POSES − 1 show one room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spen.tasks.denoising.rooms import furniture
from spen.tasks.denoising.rooms.furniture import Piece, Rng
from spen.tasks.denoising.rooms.shapes import Camera, Shape, ball, box, cast, rod, tilt, yaw

SPLITS = ("train", "dev", "test")

NEAR_M, FAR_M = 0.5, 4.0
"""Depths outside of this range have no truth (0)."""

POSES = 4
"""Camera poses in a room: building it is shared among them."""


@dataclass(frozen=True)
class Scene:
    """A room (a box seen from inside) and what stands in it."""

    room: Shape
    slopes: list[Shape]  # sloping ceilings
    fixtures: list[Shape]  # windows, doors, pictures, lamps: what hangs on the walls and from the ceiling
    pieces: list[Piece]

    @property
    def shapes(self) -> list[Shape]:
        return self.slopes + self.fixtures + [shape for piece in self.pieces for shape in piece.shapes]

    def depth(self, camera: Camera) -> NDArray[np.float32]:  # (H, W) metres
        """The exact z of the first surface in each pixel, whatever its range."""
        return cast(self.shapes, camera, background=self.room)

    def truth(self, camera: Camera) -> NDArray[np.float32]:  # (H, W) metres, 0 = no truth
        """The depth where it lies in the range of the data, 0 elsewhere."""
        z = self.depth(camera)
        return np.where((z >= NEAR_M) & (z <= FAR_M), z, np.float32(0))


def _generator(split: str, index: int, seed: int, purpose: int) -> Rng:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r} but must be one of {', '.join(SPLITS)}")
    if index < 0 or seed < 0:
        raise ValueError(f"index {index} and seed {seed} must not be negative")
    return np.random.default_rng(np.random.SeedSequence([seed, SPLITS.index(split), index, purpose]))


@lru_cache(maxsize=4)
def make_scene(split: str, index: int, seed: int = 0) -> Scene:
    """Room number `index` of a split."""
    rng = _generator(split, index, seed, purpose=0)
    width, depth, height = rng.uniform(2.7, 3.7), rng.uniform(2.9, 4.1), rng.uniform(2.25, 2.7)
    room = box((0, 0, 0), (width, depth, height))
    slopes = _attic(rng, width, depth) if rng.random() < 0.3 else []
    pieces = _furnish(rng, width, depth)
    return Scene(room, slopes, _fixtures(rng, width, depth, height, beams=not slopes), pieces)


def make_camera(scene: Scene, split: str, index: int, seed: int = 0) -> Camera:
    """A hand-held camera that looks at a piece of furniture from a free place, for frame `index` of a split."""
    rng = _generator(split, index, seed, purpose=1)
    # Whole pieces as boxes are enough to see whether something stands in front of the lens.
    blocks = scene.slopes + [_block(piece) for piece in scene.pieces]
    best, best_score = None, -np.inf
    for _ in range(12):
        camera = _look(rng, scene)
        if any(shape.holds(camera.position) for shape in blocks):
            continue
        coarse = Camera(camera.rotation, camera.position, 12, 16, camera.focal / 20)
        z = cast(blocks, coarse, background=scene.room)
        free = np.mean((z > NEAR_M) & (z < FAR_M))
        # A view of little but one wall teaches a denoiser nothing: prefer depth that varies.
        score = float(free + 0.15 * np.std(z)) - (0.5 if free < 0.98 else 0.0)
        if score > best_score:
            best, best_score = camera, score
        if free >= 0.99 and np.std(z) > 0.45:
            break
    return best if best is not None else _look(rng, scene)


def room_frame(split: str, index: int, seed: int = 0) -> NDArray[np.float32]:  # (240, 320) metres, 0 = no truth
    """Frame `index` of a split of the built-in rooms."""
    scene = make_scene(split, index // POSES, seed)
    return scene.truth(make_camera(scene, split, index, seed))


def _block(piece: Piece) -> Shape:
    corners = np.concatenate([shape.corners() for shape in piece.shapes])
    return box(corners.min(axis=0), corners.max(axis=0))


def _look(rng: Rng, scene: Scene) -> Camera:
    size = 2 * scene.room.centre
    target = scene.pieces[rng.integers(len(scene.pieces))]
    corners = np.concatenate([shape.corners() for shape in target.shapes])
    aim = corners.mean(axis=0) + rng.normal(0, 0.2, 3)
    position = np.array([rng.uniform(0.25, size[0] - 0.25), rng.uniform(0.25, size[1] - 0.25), rng.uniform(0.8, 1.8)])
    # Stepping back from the target until the view holds more than it.
    away = position[:2] - aim[:2]
    stretch = max(1.0, rng.uniform(1.3, 2.4) / (np.hypot(*away) + 1e-6))
    position[:2] = np.clip(aim[:2] + away * stretch, 0.2, size[:2] - 0.2)
    forward = aim - position
    forward[2] = np.clip(forward[2], -0.75 * np.hypot(forward[0], forward[1]), 0.1)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    frame = np.stack([right, np.cross(forward, right), forward], axis=1)
    return Camera(frame @ yaw(rng.normal(0, 0.06)), position)


# ── furnishing ──


def _furnish(rng: Rng, width: float, depth: float) -> list[Piece]:
    """Pieces along the walls, then a group in the middle, then odds and ends; none stands in another."""
    taken: list[tuple[float, float, float, float]] = []
    pieces: list[Piece] = []

    def put(piece: Piece, x: float, y: float, angle: float, gap: float = 0.03) -> bool:
        placed = piece.placed(x, y, angle)
        corners = np.concatenate([shape.corners()[:, :2] for shape in placed.shapes])
        (x0, y0), (x1, y1) = corners.min(axis=0), corners.max(axis=0)
        inside = x0 > -0.02 and y0 > -0.02 and x1 < width + 0.02 and y1 < depth + 0.02
        if not inside or any(x0 < b + gap and x1 > a - gap and y0 < d + gap and y1 > c - gap for a, b, c, d in taken):
            return False
        taken.append((x0, x1, y0, y1))
        pieces.append(placed)
        return True

    for which in rng.permutation(len(furniture.WALL_PIECES))[: rng.integers(4, 7)]:
        piece = furniture.WALL_PIECES[which](rng)
        for _ in range(6):
            if put(piece, *_against_wall(rng, width, depth, piece)):
                break
    if rng.random() < 0.75:
        _dining_group(rng, width, depth, put)
    for _ in range(rng.integers(3, 6)):
        piece = furniture.FREE_PIECES[rng.integers(len(furniture.FREE_PIECES))](rng)
        for _ in range(4):
            spot = rng.uniform(0.3, width - 0.3), rng.uniform(0.3, depth - 0.3)
            if put(piece, *spot, rng.uniform(0, 2 * np.pi)):
                break
    if not pieces:
        put(furniture.stool(rng), width / 2, depth / 2, 0.0)
    return pieces


def _against_wall(rng: Rng, width: float, depth: float, piece: Piece) -> tuple[float, float, float]:
    wall, half = rng.integers(4), piece.size[0] / 2
    along = depth if wall % 2 else width
    # Furniture likes corners and the middle of a wall.
    place = rng.choice([half + 0.02, along - half - 0.02, rng.uniform(half, max(along - half, half + 0.01))])
    gap = rng.uniform(0.0, 0.04)
    spots = (
        (place, gap, 0.0),
        (width - gap, place, np.pi / 2),
        (place, depth - gap, np.pi),
        (gap, place, -np.pi / 2),
    )
    return spots[wall]


def _dining_group(rng: Rng, width: float, depth: float, put: Callable[..., bool]) -> None:
    top = furniture.table(rng)
    angle = rng.choice([0.0, np.pi / 2]) + rng.normal(0, 0.12)
    forward = yaw(angle)[:2, 1]
    middle = np.array([width, depth]) * rng.uniform(0.4, 0.6, 2)
    if not put(top, *(middle - forward * top.size[1] / 2), angle):
        return
    for side in rng.permutation(4)[: rng.integers(1, 5)]:
        reach = top.size[1 - int(side) % 2] / 2
        out = yaw(angle + side * np.pi / 2)[:2, 1]
        # The chair's back is away from the table, its seat half under it.
        back = middle + out * (reach + rng.uniform(0.3, 0.45))
        put(furniture.chair(rng), *back, angle + side * np.pi / 2 + np.pi + rng.normal(0, 0.25), gap=-0.12)


def _attic(rng: Rng, width: float, depth: float) -> list[Shape]:
    """A ceiling that slopes up from a low wall: a thick slab, so that no camera gets above it."""
    angle, low = rng.uniform(0.5, 0.9), rng.uniform(1.0, 1.5)
    slab = box((-1, -3, -1), (width + 1, 3, 1), tilt(angle))
    slab = slab.moved(np.eye(3), np.array([0.0, 0.0, low + 1 / np.cos(angle)]))
    return [slab if rng.random() < 0.5 else slab.moved(yaw(np.pi), np.array([width, depth, 0.0]))]


def _fixtures(rng: Rng, width: float, depth: float, height: float, beams: bool) -> list[Shape]:
    shapes = _skirting(width, depth)
    walls = [(width, np.zeros(2), 0.0), (depth, np.array([width, 0.0]), np.pi / 2)]
    walls += [(width, np.array([width, depth]), np.pi), (depth, np.array([0.0, depth]), -np.pi / 2)]
    for length, corner, angle in walls:
        hung: list[Shape] = []
        what = rng.integers(5)
        if what == 0:
            hung = _window(rng, length, height)
        elif what == 1:
            hung = _door(rng, length)
        elif what <= 3:
            hung = _pictures(rng, length)
        shapes += [shape.moved(yaw(angle), np.append(corner, 0.0)) for shape in hung]
    if beams and rng.random() < 0.4:
        for y in np.arange(rng.uniform(0.3, 0.6), depth, rng.uniform(0.7, 1.1)):
            shapes.append(box((0, y, height - 0.16), (width, y + 0.12, height)))
    if rng.random() < 0.5:
        x, y = np.array([width, depth]) * rng.uniform(0.4, 0.6, 2)
        drop, r = rng.uniform(0.5, 0.8), rng.uniform(0.12, 0.22)
        shapes.append(rod((x, y, height), (x, y, height - drop), 0.008))
        shapes.append(rod((x, y, height - drop), (x, y, height - drop - 0.2), r * 0.3, taper=3.0))
    if rng.random() < 0.5:
        x, y = np.array([width, depth]) * rng.uniform(0.35, 0.65, 2)
        a, b = rng.uniform(0.6, 1.0), rng.uniform(0.4, 0.7)
        shapes.append(box((x - a, y - b, 0), (x + a, y + b, 0.015), yaw(rng.normal(0, 0.2))))
    return shapes


def _skirting(width: float, depth: float) -> list[Shape]:
    t, h = 0.014, 0.08
    return [
        box((0, 0, 0), (width, t, h)),
        box((0, depth - t, 0), (width, depth, h)),
        box((0, 0, 0), (t, depth, h)),
        box((width - t, 0, 0), (width, depth, h)),
    ]


def _window(rng: Rng, length: float, height: float) -> list[Shape]:
    """A frame with bars, a sill, a radiator below and, often, curtains of hanging folds."""
    half, middle = rng.uniform(0.45, 0.75), rng.uniform(0.9, length - 0.9)
    low, high = rng.uniform(0.85, 1.0), min(2.1, height - 0.15)
    a, b = middle - half, middle + half
    shapes = [
        box((a - 0.07, 0, low - 0.07), (b + 0.07, 0.05, low)),
        box((a - 0.07, 0, high), (b + 0.07, 0.05, high + 0.07)),
        box((a - 0.07, 0, low), (a, 0.05, high)),
        box((b, 0, low), (b + 0.07, 0.05, high)),
        box((middle - 0.025, 0, low), (middle + 0.025, 0.035, high)),
        box((a, 0, (low + high) / 2 - 0.02), (b, 0.03, (low + high) / 2 + 0.02)),
        box((a - 0.12, 0, low - 0.1), (b + 0.12, 0.18, low - 0.07)),
    ]
    if rng.random() < 0.7:
        for x in np.arange(a + 0.05, b - 0.05, 0.09):
            shapes.append(rod((x, 0.08, 0.12), (x, 0.08, low - 0.2), 0.035))
        shapes.append(rod((a, 0.08, 0.17), (b, 0.08, 0.17), 0.02))
    if rng.random() < 0.6:
        shapes.append(rod((a - 0.35, 0.11, high + 0.12), (b + 0.35, 0.11, high + 0.12), 0.014))
        for start, step in ((a - 0.3, 1), (b + 0.3, -1)):
            x = start
            for _ in range(rng.integers(4, 8)):
                fold = rng.uniform(0.025, 0.05)
                y = 0.11 + rng.uniform(-0.02, 0.02)
                shapes.append(rod((x, y, 0.05), (x + rng.normal(0, 0.01), y, high + 0.1), fold))
                x += step * 1.5 * fold
    return shapes


def _door(rng: Rng, length: float) -> list[Shape]:
    middle, half, high = rng.uniform(0.6, length - 0.6), 0.43, 2.0
    a, b = middle - half, middle + half
    handle = a + 0.08
    return [
        box((a - 0.08, 0, 0), (a, 0.035, high + 0.08)),
        box((b, 0, 0), (b + 0.08, 0.035, high + 0.08)),
        box((a, 0, high), (b, 0.035, high + 0.08)),
        box((a + 0.12, 0, 0.25), (b - 0.12, 0.015, 0.9)),
        box((a + 0.12, 0, 1.15), (b - 0.12, 0.015, high - 0.15)),
        rod((handle, 0.0, 1.02), (handle, 0.05, 1.02), 0.012),
        rod((handle, 0.05, 1.02), (handle + 0.11, 0.05, 1.02), 0.011),
    ]


def _pictures(rng: Rng, length: float) -> list[Shape]:
    """Framed pictures in a row, or a clock, or a board with things on it."""
    shapes: list[Shape] = []
    x = rng.uniform(0.3, 0.8)
    while x < length - 0.5:
        w, h, z = rng.uniform(0.12, 0.35), rng.uniform(0.12, 0.3), rng.uniform(1.35, 1.75)
        kind = rng.random()
        if kind < 0.6:
            shapes.append(box((x - w, 0, z - h), (x + w, 0.02, z + h)))
            for low, high in (((x - w, z - h), (x + w, z - h + 0.03)), ((x - w, z + h - 0.03), (x + w, z + h))):
                shapes.append(box((low[0], 0, low[1]), (high[0], 0.04, high[1])))
            for side in (x - w, x + w - 0.03):
                shapes.append(box((side, 0, z - h), (side + 0.03, 0.04, z + h)))
        elif kind < 0.8:
            shapes.append(rod((x, 0, z), (x, 0.05, z), rng.uniform(0.12, 0.2)))
        else:
            shapes.append(box((x - w, 0, z - 0.02), (x + w, 0.2, z)))
            for at in np.linspace(x - w + 0.06, x + w - 0.06, 3):
                r = rng.uniform(0.03, 0.055)
                shapes.append(rod((at, 0.1, z), (at, 0.1, z + rng.uniform(0.06, 0.2)), r))
            shapes.append(ball((x, 0.1, z + 0.25), 0.05))
        x += 2 * w + rng.uniform(0.1, 0.9)
    return shapes
