"""p = M·q + c carries a unit shape into the world, and a ray keeps its parameter t under it: so four shapes are enough.

A box is the cube [−1, 1]³, an ellipsoid the unit ball, a rod the unit cylinder and a cone a cylinder that tapers.
Rays leave a camera with a z component of 1, so t is the depth that a depth sensor reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]
Kind = Literal["box", "ball", "rod", "cone"]

_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)
_EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if bin(a ^ b).count("1") == 1]).T
_NEAR = 0.02  # what is closer to the lens is not drawn


@dataclass(frozen=True)
class Shape:
    """A unit shape seen through p = M·q + c; `taper` is the top radius of a cone whose bottom radius is 1."""

    kind: Kind
    matrix: Array  # (3, 3) M
    centre: Array  # (3,) c
    taper: float = 1.0

    def moved(self, rotation: Array, shift: Array) -> Shape:
        """The shape after p → rotation·p + shift."""
        return Shape(self.kind, rotation @ self.matrix, rotation @ self.centre + shift, self.taper)

    def holds(self, point: Array) -> bool:
        """Whether a point lies in the shape's own bounding box."""
        return bool(np.all(np.abs(np.linalg.solve(self.matrix, point - self.centre)) <= 1))

    def corners(self) -> Array:  # (8, 3)
        """The corners of the shape's own bounding box, in the world."""
        wide = max(1.0, self.taper)
        return (_CORNERS * (wide, wide, 1.0)) @ self.matrix.T + self.centre


@dataclass(frozen=True)
class Camera:
    """A pinhole: pixel (u, v) at depth z is position + z·rotation·((u − cu)/f, (v − cv)/f, 1); x right, y down."""

    rotation: Array  # (3, 3) camera to world
    position: Array  # (3,)
    height: int = 240
    width: int = 320
    focal: float = 292.5

    @property
    def centre(self) -> tuple[float, float]:
        """(cu, cv): pixel 2i of a sensor of twice the size is pixel i here, so the centre is half the size."""
        return self.width / 2, self.height / 2

    def rays(self) -> Array:  # (3, 3), columns: ray = base + u·du + v·dv in world axes
        """The ray of pixel (u, v) is rays @ (1, u, v)."""
        cu, cv = self.centre
        pixels = np.array([[-cu, 1.0, 0.0], [-cv, 0.0, 1.0], [self.focal, 0.0, 0.0]]) / self.focal
        return self.rotation @ pixels


def yaw(angle: float) -> Array:
    """The rotation by `angle` about the vertical (z) axis."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def tilt(angle: float) -> Array:
    """The rotation by `angle` about the x axis."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def box(low: ArrayLike, high: ArrayLike, rotation: Array | None = None) -> Shape:
    """The box between two corners, then turned about its own centre."""
    a, b = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    frame = np.eye(3) if rotation is None else rotation
    return Shape("box", frame * (np.maximum(b - a, 1e-4) / 2), (a + b) / 2)


def ball(centre: ArrayLike, radius: ArrayLike, rotation: Array | None = None) -> Shape:
    """A sphere, or an ellipsoid where three radii are given."""
    frame = np.eye(3) if rotation is None else rotation
    return Shape("ball", frame * np.broadcast_to(np.asarray(radius, dtype=np.float64), 3), np.asarray(centre, float))


def rod(start: ArrayLike, end: ArrayLike, radius: float, taper: float = 1.0) -> Shape:
    """A capped cylinder between two points, or a cone where the radius at the end is `taper` times the first."""
    a, b = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
    axis = (b - a) / 2
    unit = axis / np.linalg.norm(axis)
    # Any vector not along the axis starts a frame; the coordinate axis least along it is the safest.
    side = np.cross(unit, np.eye(3)[np.argmin(np.abs(unit))])
    side /= np.linalg.norm(side)
    matrix = np.stack([side * radius, np.cross(unit, side) * radius, axis], axis=1)
    return Shape("rod" if taper == 1.0 else "cone", matrix, (a + b) / 2, taper)


def cast(shapes: list[Shape], camera: Camera, background: Shape | None = None) -> NDArray[np.float32]:  # (H, W)
    """min over shapes of the depth z at which each pixel's ray enters it; inf where it meets none.

    `background` is a box seen from inside (the room): its exit is the farthest that a ray can go.
    """
    # All is done in w = 1/z: a plane's w is affine in the pixel (u, v), so boxes need no division a pixel.
    nearest = np.zeros((camera.height, camera.width), dtype=np.float32)
    rays = camera.rays()
    if background is not None:
        inverse = np.linalg.inv(background.matrix)
        whole = Window(0, camera.width, 0, camera.height)
        _, leave = _box_planes(inverse @ (camera.position - background.centre), inverse @ whole.centred(rays))
        np.copyto(nearest, whole.maximum(leave))
    if shapes:
        inverses = np.linalg.inv(np.stack([shape.matrix for shape in shapes]))
        origins = np.einsum("nij,nj->ni", inverses, camera.position - np.stack([shape.centre for shape in shapes]))
        for i, near, window in _windows(shapes, camera):
            view = nearest[window.v0 : window.v1, window.u0 : window.u1]
            # Near shapes come first: one that lies behind all that its window already shows is skipped.
            if near <= _NEAR or view.min() * near < 1:
                hit = _enter(shapes[i], origins[i], inverses[i] @ window.centred(rays), window)
                if hit is not None:
                    np.maximum(view, hit, out=view)
    with np.errstate(divide="ignore"):
        return np.reciprocal(nearest)


class Window(NamedTuple):
    """The pixels [u0, u1)×[v0, v1). Polynomials over it are taken about its middle, where they cancel least."""

    u0: int
    u1: int
    v0: int
    v1: int

    def centred(self, rays: Array) -> Array:  # (3, 3)
        """Columns (1, u, v) of the rays, with u and v counted from the window's middle."""
        u, v = (self.u0 + self.u1) / 2, (self.v0 + self.v1) / 2
        return np.stack([rays[:, 0] + u * rays[:, 1] + v * rays[:, 2], rays[:, 1], rays[:, 2]], axis=1)

    def axes(self) -> tuple[Array, Array]:
        half_u, half_v = (self.u1 - self.u0) / 2, (self.v1 - self.v0) / 2
        return np.arange(self.u1 - self.u0) - half_u, np.arange(self.v1 - self.v0) - half_v

    def affine(self, c: Array) -> NDArray[np.float32]:  # (h, w)
        """c₀ + c₁·u + c₂·v."""
        u, v = self.axes()
        return np.add((c[0] + c[1] * u).astype(np.float32), (c[2] * v).astype(np.float32)[:, None])

    def quadratic(self, m: Array) -> NDArray[np.float32]:  # (h, w)
        """(1, u, v)·m·(1, u, v)ᵀ for a symmetric m."""
        u, v = self.axes()
        across = (m[0, 0] + 2 * m[0, 1] * u + m[1, 1] * u * u).astype(np.float32)
        down = (2 * m[0, 2] * v + m[2, 2] * v * v).astype(np.float32)[:, None]
        value = np.multiply((2 * m[1, 2] * u).astype(np.float32), v.astype(np.float32)[:, None])
        value += across
        value += down
        return value

    def maximum(self, planes: list[Array]) -> NDArray[np.float32]:
        value = self.affine(planes[0])
        for c in planes[1:]:
            np.maximum(value, self.affine(c), out=value)
        return value


def _windows(shapes: list[Shape], camera: Camera) -> Iterator[tuple[int, float, Window]]:
    """(index, depth of the nearest corner, pixels that can see it), nearest first."""
    seen = (np.stack([shape.corners() for shape in shapes]) - camera.position) @ camera.rotation
    near = seen[..., 2].min(axis=1)
    # Edges are cut where they pass behind the lens, because a projection would fold them over.
    start, end = seen[:, _EDGES[0]], seen[:, _EDGES[1]]
    z, dz = start[..., 2:], (end - start)[..., 2:]
    cut = np.clip((_NEAR - z) / np.where(dz == 0, 1, dz), 0, 1)
    crossing = start + cut * (end - start)
    ends = np.concatenate([start, end], axis=1)
    points = np.where(ends[..., 2:] < _NEAR, np.concatenate([crossing, crossing], axis=1), ends)
    front = points[..., 2:] >= _NEAR * 0.999
    uv = points[..., :2] / np.where(front, points[..., 2:], 1) * camera.focal + camera.centre
    size = np.array([camera.width, camera.height])
    low = np.clip(np.floor(np.where(front, uv, np.inf).min(axis=1)), 0, size).astype(int)
    high = np.clip(np.ceil(np.where(front, uv, -np.inf).max(axis=1)) + 1, 0, size).astype(int)
    for i in np.argsort(near):
        if np.all(low[i] < high[i]):
            yield int(i), float(near[i]), Window(low[i, 0], high[i, 0], low[i, 1], high[i, 1])


def _box_planes(origin: Array, d: Array) -> tuple[list[Array], list[Array]]:
    """w of the faces by which a ray can enter the cube and of those by which it can leave, as affine coefficients."""
    enter, leave = [], []
    for o, slope in zip(origin, d, strict=True):
        if abs(o) > 1:
            side = np.sign(o)
            enter.append(slope / (side - o))
            leave.append(slope / (-side - o))
        else:
            leave += [slope / np.copysign(max(abs(side - o), 1e-9), side) for side in (1.0, -1.0)]
    return enter, leave


def _enter(shape: Shape, origin: Array, d: Array, window: Window) -> NDArray[np.float32] | None:
    """w = 1/z where a ray from outside first meets the shape, 0 where it does not; None for an eye within it."""
    if shape.kind == "box":
        enter, leave = _box_planes(origin, d)
        if not enter:
            return None
        w = window.affine(enter[0])
        for c in enter[1:]:
            np.minimum(w, window.affine(c), out=w)
        w *= w >= window.maximum(leave)
        return w
    if shape.kind == "ball":
        return _quadric(origin, d, np.diag([1.0, 1.0, 1.0, -1.0]), window)
    # x² + y² = (m + k·z)²: m is the radius at half height and k how it grows; a rod has m = 1, k = 0.
    k, m = (shape.taper - 1) / 2, (shape.taper + 1) / 2
    form = np.diag([1.0, 1.0, -k * k, -m * m])
    form[2, 3] = form[3, 2] = -k * m
    side = _quadric(origin, d, form, window)
    if side is not None:  # |o_z + d_z / w| ≤ 1
        side *= np.abs(np.float32(origin[2]) * side + window.affine(d[2])) <= side
    if abs(origin[2]) <= 1:
        return side
    # Of the two caps only the one that faces the eye can be entered first.
    end = np.sign(origin[2])
    plane = d[2] / (end - origin[2])
    x, y, reach = origin[0] * plane + d[0], origin[1] * plane + d[1], (m + k * end) * plane
    cap = window.affine(plane)
    cap *= window.quadratic(np.outer(x, x) + np.outer(y, y) - np.outer(reach, reach)) <= 0
    return cap if side is None else np.maximum(side, cap, out=side)


def _quadric(origin: Array, d: Array, form: Array, window: Window) -> NDArray[np.float32] | None:
    """The larger root w of c·w² + 2·b·w + a = 0, where (o·w + d, w) meets the quadric of `form` from outside."""
    o = np.append(origin, 1.0)  # the ray's point, times w, in homogeneous coordinates: w·o + (d, 0)
    directions = np.vstack([d, np.zeros(3)])
    a, b, c = directions.T @ form @ directions, o @ form @ directions, o @ form @ o
    if c <= 0:
        return None
    disc = window.quadratic(np.outer(b, b) - a * c)
    hit = disc >= 0
    w = np.sqrt(np.maximum(disc, 0, out=disc), out=disc)
    w -= window.affine(b)
    w *= np.float32(1 / c)
    w *= hit
    return w
