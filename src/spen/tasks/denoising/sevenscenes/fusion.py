"""D(p) = Σ_i w_i·min((z_i − p_z) / τ, 1) / Σ_i w_i: frames averaged into a signed distance, then ray-cast.

z_i is the reading of frame i at the pixel where it sees p, and p_z the depth of p there; D = 0 is the surface.

As in KinectFusion (Curless and Levoy's truncated signed distance), in torch, on a CPU or a GPU. Voxels are stored in
blocks of 8³ near surfaces alone, found through a table of block numbers: memory grows with the surface, not the room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from scipy import ndimage
from torch import Tensor

BLOCK = 8
"""Voxels along the side of a block."""

CHUNK = 4096
"""Blocks that are integrated at a time, which bounds memory."""


class Pinhole(NamedTuple):
    """Pixel (u, v) at depth z is z·((u − cu)/f, (v − cv)/f, 1); x right, y down."""

    focal: float
    cu: float
    cv: float
    height: int
    width: int

    def halved(self) -> Pinhole:
        """The camera of every second pixel."""
        return Pinhole(self.focal / 2, self.cu / 2, self.cv / 2, (self.height + 1) // 2, (self.width + 1) // 2)

    def rays(self, device: torch.device | str) -> Tensor:  # (H, W, 3), z component 1
        v, u = torch.meshgrid(
            torch.arange(self.height, device=device), torch.arange(self.width, device=device), indexing="ij"
        )
        return torch.stack([(u - self.cu) / self.focal, (v - self.cv) / self.focal, torch.ones_like(u)], dim=-1).float()


class View(NamedTuple):
    """A depth map and where it was taken from."""

    depth: Tensor  # (H, W) metres, 0 = no reading
    pose: Tensor  # (4, 4) camera to world


class Volume:
    """A truncated signed distance in blocks; make it with `fuse`."""

    def __init__(self, blocks: Tensor, voxel: float, truncation: float) -> None:
        """`blocks`, (N, 3) int64, are the coordinates of the blocks to keep."""
        if len(blocks) == 0:
            raise ValueError("no frame has a reading in range, so there is nothing to fuse")
        self.voxel, self.truncation = voxel, truncation
        self.blocks = blocks
        self.low = blocks.min(dim=0).values
        self.extent = blocks.max(dim=0).values - self.low + 1
        device = blocks.device
        # Block number + 1, so that 0 says "no block"; row 0 of the averages stays unobserved.
        self.table = torch.zeros(int(self.extent.prod()), dtype=torch.int64, device=device)
        self.table[self._key(blocks)] = torch.arange(1, len(blocks) + 1, device=device)
        # How many blocks lie between a block and the nearest kept one, in any direction: rays hop over that much.
        empty = (self.table == 0).reshape(self.extent.tolist()).cpu().numpy()
        apart = torch.from_numpy(ndimage.distance_transform_cdt(empty, metric="chessboard"))
        self.gap = (apart.flatten() - 1).clamp_min(0).to(device)
        self.distance = torch.zeros(len(blocks) + 1, BLOCK**3, device=device)
        self.weight = torch.zeros(len(blocks) + 1, BLOCK**3, device=device)
        corner = torch.arange(BLOCK, device=device)
        self._inside = torch.stack(torch.meshgrid(corner, corner, corner, indexing="ij"), dim=-1).reshape(-1, 3)

    def _key(self, block: Tensor) -> Tensor:
        x, y, z = (block - self.low).unbind(-1)
        return (x * self.extent[1] + y) * self.extent[2] + z

    def _find(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """The table's row for a block, and whether the table reaches there."""
        held = ((block >= self.low) & (block < self.low + self.extent)).all(dim=-1)
        return torch.where(held, self._key(block), 0), held

    def hop(self, points: Tensor) -> Tensor:  # (N, 3) → (N,) metres
        """How far one may go from each point, in any direction, without meeting a kept block."""
        block = torch.floor(points / (BLOCK * self.voxel)).long()
        key, held = self._find(block)
        last = self.low + self.extent - 1
        outside = torch.maximum(self.low - block, block - last).amax(dim=-1) - 1
        return torch.where(held, self.gap[key], outside.clamp_min(0)) * (BLOCK * self.voxel)

    def integrate(self, view: View, camera: Pinhole) -> None:
        """Add one frame to the averages."""
        depth, pose = view
        rotation, position = pose[:3, :3], pose[:3, 3]
        side = BLOCK * self.voxel
        centres = ((self.blocks + 0.5) * side - position) @ rotation
        seen = _in_view(centres, camera, side) & (centres[:, 2] < depth.max() + self.truncation + side)
        for number in seen.nonzero()[:, 0].split(CHUNK):
            points = (self.blocks[number][:, None] * BLOCK + self._inside + 0.5) * self.voxel
            x, y, z = ((points - position) @ rotation).unbind(-1)  # (n, 512)
            ahead = z.clamp_min(1e-3)
            u = torch.round(x / ahead * camera.focal + camera.cu).long()
            v = torch.round(y / ahead * camera.focal + camera.cv).long()
            inside = (z > 1e-3) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
            reading = depth[v.clamp(0, camera.height - 1), u.clamp(0, camera.width - 1)]
            gap = reading - z
            known = inside & (reading > 0) & (gap > -self.truncation)
            # A reading's error grows with z², and so falls its weight; the near views of a surface are its best.
            weight = torch.where(known, 1 / ahead.square(), 0.0)
            old = self.weight[number + 1]
            total = old + weight
            value = (gap / self.truncation).clamp_max(1.0)
            mean = (self.distance[number + 1] * old + value * weight) / total.clamp_min(1e-12)
            self.distance[number + 1] = torch.where(total > 0, mean, 0.0)
            self.weight[number + 1] = total

    def sample(self, points: Tensor) -> tuple[Tensor, Tensor]:  # (N, 3) → (N,), (N,) bool
        """The distance at the nearest voxel, and whether it has been observed."""
        return self._voxel(torch.floor(points / self.voxel).long())

    def _voxel(self, index: Tensor) -> tuple[Tensor, Tensor]:
        block = torch.div(index, BLOCK, rounding_mode="floor")
        inside = index - block * BLOCK
        key, held = self._find(block)
        number = self.table[key] * held
        x, y, z = inside.unbind(-1)
        flat = number * BLOCK**3 + (x * BLOCK + y) * BLOCK + z
        return self.distance.view(-1)[flat], self.weight.view(-1)[flat] > 0

    def interpolate(self, points: Tensor) -> tuple[Tensor, Tensor]:  # (N, 3) → (N,), (N,) bool
        """The trilinear distance, and whether all eight voxels around the point have been observed."""
        at = points / self.voxel - 0.5
        base = torch.floor(at)
        part = at - base
        value, known = torch.zeros_like(part[:, 0]), torch.ones_like(part[:, 0], dtype=torch.bool)
        for corner in torch.cartesian_prod(*[torch.arange(2, device=points.device)] * 3):
            weight = torch.where(corner == 1, part, 1 - part).prod(dim=-1)
            distance, seen = self._voxel(base.long() + corner)
            value, known = value + weight * distance, known & seen
        return value, known

    def raycast(
        self,
        pose: Tensor,  # (4, 4) camera to world
        camera: Pinhole,
        near: float = 0.3,
        far: float = 4.5,
    ) -> Tensor:  # (H, W) metres, 0 = no surface
        """The depth at which each ray passes from free space (D > 0) into a surface (D < 0)."""
        rays = camera.rays(pose.device).reshape(-1, 3)
        length = rays.norm(dim=-1)
        world, position = rays @ pose[:3, :3].T, pose[:3, 3]
        depth = torch.zeros(len(rays), device=pose.device)
        active = torch.arange(len(rays), device=pose.device)
        before = torch.zeros(len(rays), device=pose.device)  # the last distance seen, 0 = none
        # In z, and shorter along an oblique ray, so that none steps over the truncation band.
        step = 0.5 * self.truncation / length
        z = torch.full_like(length, near)
        while len(active) > 0:
            at = z[active]
            points = position + at[:, None] * world[active]
            distance, seen = self.sample(points)
            distance = torch.where(seen, distance, 0.0)
            last = before[active]
            crossed = (last > 0) & (distance < 0)
            depth[active[crossed]] = at[crossed]
            before[active] = distance
            z[active] = at + torch.maximum(step[active], self.hop(points) / length[active])
            # A ray that meets the back of a surface (D rises from below 0) sees no front there.
            behind = (last < 0) & (distance > 0)
            active = active[~crossed & ~behind & (z[active] < far)]
        hit = depth.nonzero()[:, 0]
        depth[hit] = self._refine(position, world[hit], depth[hit], step[hit])
        return depth.reshape(camera.height, camera.width)

    def _refine(self, position: Tensor, rays: Tensor, high: Tensor, step: Tensor) -> Tensor:
        """The zero of the trilinear distance about the last step, by bisection and a secant; 0 if unseen."""
        # The nearest voxel's distance is off by up to a voxel, so the zero may lie just outside of the last step.
        low, high = high - 1.5 * step, high + 0.5 * step
        first, seen_low = self.interpolate(position + low[:, None] * rays)
        last, seen_high = self.interpolate(position + high[:, None] * rays)
        found = seen_low & seen_high & (first > 0) & (last <= 0)
        for _ in range(5):
            middle = (low + high) / 2
            value, _ = self.interpolate(position + middle[:, None] * rays)
            front = value > 0
            low, first = torch.where(front, middle, low), torch.where(front, value, first)
            high, last = torch.where(front, high, middle), torch.where(front, last, value)
        zero = low + (high - low) * first / (first - last).clamp_min(1e-9)
        return torch.where(found, zero, 0.0)


def _in_view(centres: Tensor, camera: Pinhole, side: float) -> Tensor:
    """Which blocks, by their centres in camera axes, may reach into the view."""
    z = centres[:, 2]
    reach = side  # more than the half diagonal of a block, √3/2·side
    u, v = centres[:, 0] * camera.focal, centres[:, 1] * camera.focal
    slack = reach * (camera.focal + max(camera.height, camera.width))
    return (
        (z > -reach)
        & (u > -camera.cu * z - slack)
        & (u < (camera.width - camera.cu) * z + slack)
        & (v > -camera.cv * z - slack)
        & (v < (camera.height - camera.cv) * z + slack)
    )


def touched_blocks(view: View, camera: Pinhole, voxel: float, truncation: float) -> Tensor:  # (N, 3) int64
    """The blocks within the truncation band of a frame's readings."""
    depth, pose = view
    rays = camera.rays(depth.device)
    valid = depth > 0
    side = BLOCK * voxel
    found = []
    # Steps of half a block along the ray, out to both ends of the band, leave out at most a block's corner.
    count = max(2, int(2 * truncation / (0.5 * side)) + 2)
    for offset in torch.linspace(-truncation, truncation, count).tolist():
        points = (rays * (depth + offset)[..., None])[valid] @ pose[:3, :3].T + pose[:3, 3]
        found.append(_distinct(torch.floor(points / side).long()))
    return _distinct(torch.cat(found))


def _distinct(blocks: Tensor) -> Tensor:  # (N, 3) → (M, 3), M ≤ N
    # Three coordinates in one number of 63 bits: unique numbers are found far faster than unique rows.
    shift, half = 1 << 21, 1 << 20
    x, y, z = (blocks.clamp(-half, half - 1) + half).unbind(-1)
    keys = torch.unique((x * shift + y) * shift + z)
    return torch.stack([keys // (shift * shift), keys // shift % shift, keys % shift], dim=-1) - half


def fuse(views: Iterable[View], camera: Pinhole, voxel: float = 0.006, truncation: float | None = None) -> Volume:
    """All views as one volume. They are iterated twice (blocks, then averages): a generator is not enough.

    The truncation is five voxels by default: wide enough for the noise of a sensor, narrow enough for edges.
    """
    if voxel <= 0:
        raise ValueError(f"voxel is {voxel} m but must be positive")
    band = 5 * voxel if truncation is None else truncation
    if band < 2 * voxel:
        raise ValueError(f"truncation is {band} m but must be at least two voxels ({2 * voxel} m)")
    blocks: Tensor | None = None
    for view in views:
        new = touched_blocks(view, camera, voxel, band)
        blocks = new if blocks is None else _distinct(torch.cat([blocks, new]))
    if blocks is None:
        raise ValueError("there are no frames to fuse")
    volume = Volume(blocks, voxel, band)
    for view in views:
        volume.integrate(view, camera)
    return volume
