"""d = f·b/z: a structured-light sensor measures disparity d, with noise and in steps, and reports depth z = f·b/d.

So an error δ of disparity is an error z²·δ/(f·b) of depth. Depth maps are in **metres** here, with 0 where nothing is
known; `spen.tasks.denoising.data` converts them into model units (depth / 4 m).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Reading(NamedTuple):
    """What the sensor reports: depth in metres, 0 where it reports nothing, and where it reports something."""

    depth: Tensor  # (…, H, W)
    valid: Tensor  # (…, H, W) bool


@dataclass(frozen=True)
class Sensor:
    """z → f·b / round(f·b/z(u + n_u, v + n_v) + n_d): lateral jitter, axial noise, quantisation, missing readings.

    `strength` scales all three: axial noise and quantum in proportion, jitter by its square root, because ten times the
    jitter of a real sensor would move edges by whole objects. Strength 0 is exact. Strength 1 is about a Kinect: on the
    surface pixels of RedKitchen's development frames 55.4 dB, where the real readings have 53.6 (truth has errors too).
    Where readings are missing is geometry and does not depend on it, except that jittered edges fray.

    Jitter and axial noise are white. A real Kinect matches windows of pixels, so its noise is correlated between
    neighbours. With ``correlated`` the jitter is smoothed over 1.5 pixels, and the axial noise is a sum of white noise
    (a third of ``axial``) and of noise smoothed over 1.5 and over 6 pixels (``axial`` each).
    `docs/scripts/sensor_noise.py` compares it with RedKitchen.
    """

    strength: float = 1.0
    focal: float = 292.5  # pixels at 320×240
    baseline: float = 0.075  # metres from camera to projector, which stands on the right
    axial: float = 0.03  # standard deviation of the disparity noise, pixels
    quantum: float = 0.0625  # step of the disparity, pixels (an eighth of a pixel at 640×480)
    lateral: float = 0.35  # standard deviation of the jitter, pixels
    grazing: float = 80.0  # degrees between the ray and the normal beyond which most readings are lost
    near: float = 0.5  # metres
    far: float = 4.0  # metres
    correlated: bool = False

    def __post_init__(self) -> None:
        for name in ("strength", "axial", "quantum", "lateral"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} but must not be negative")
        if not 0 < self.near < self.far:
            raise ValueError(f"near is {self.near} m and far {self.far} m; the range must satisfy 0 < near < far")
        if not self.focal > 0 or not self.baseline > 0:
            raise ValueError(f"focal {self.focal} and baseline {self.baseline} must be positive")

    def __call__(
        self,
        depth: Tensor,  # (H, W), (1, H, W) or (B, 1, H, W), metres, 0 = unknown
        generator: torch.Generator,
        strengths: Tensor | None = None,  # (B,), of each map, in place of `strength`
        correlated: Tensor | None = None,  # (B,) bool, of each map, in place of `correlated`
    ) -> Reading:
        """One reading; all its randomness comes from `generator`, which must be on the depth's device."""
        if depth.dim() < 2 or (depth.dim() > 2 and depth.shape[-3] != 1):
            raise ValueError(f"depth has shape {tuple(depth.shape)} but (H, W), (1, H, W) or (B, 1, H, W) is needed")
        z = depth.detach().float().reshape(-1, 1, *depth.shape[-2:])
        fb = self.focal * self.baseline
        disparity = torch.where(z > 0, fb / z.clamp_min(1e-3), 0.0)
        lost = self._grazing(z, generator) | self._shadow(disparity) | (z < self.near) | (z > self.far)
        strength = torch.tensor(self.strength, device=z.device) if strengths is None else strengths.to(z)
        strength = strength.view(-1, 1, 1, 1)
        if correlated is None and self.correlated:
            correlated = torch.ones(len(z), dtype=torch.bool, device=z.device)
        kinect = None if correlated is None else correlated.view(-1, 1, 1, 1)
        shift = _noise((len(z), 2, *z.shape[-2:]), generator, kinect, white=0.0, widths=(1.5,))
        seen, lost = self._jitter(disparity, lost, strength.sqrt() * self.lateral * shift)
        noise = _noise(seen.shape, generator, kinect, white=1 / 3, widths=(1.5, 6.0))
        seen = seen + strength * self.axial * noise
        step = strength * self.quantum
        seen = torch.where(step > 0, torch.round(seen / step.clamp_min(1e-12)) * step, seen)
        # Matching searches the disparities of the range alone, so a noisy reading cannot leave it.
        seen = seen.clamp(fb / self.far, fb / self.near)
        reading = torch.where(lost, 0.0, fb / seen)
        return Reading(reading.reshape(depth.shape), ~lost.reshape(depth.shape))

    def _jitter(self, disparity: Tensor, lost: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:  # shift (B, 2, H, W)
        """Readings, present or missing, come from a place nearby; between pixels disparity is linear."""
        height, width = disparity.shape[-2:]
        device = disparity.device
        v = (torch.arange(height, device=device)[:, None] + shift[:, 0]).clamp(0, height - 1)
        u = (torch.arange(width, device=device) + shift[:, 1]).clamp(0, width - 1)
        flat = disparity.flatten(1)
        v0, u0 = v.floor().long().clamp_max(max(height - 2, 0)), u.floor().long().clamp_max(max(width - 2, 0))
        down, right = (width if height > 1 else 0), (1 if width > 1 else 0)
        corner = (v0 * width + u0).flatten(1)
        a, b = flat.gather(1, corner), flat.gather(1, corner + right)
        c, d = flat.gather(1, corner + down), flat.gather(1, corner + down + right)
        fv, fu = (v - v0).flatten(1), (u - u0).flatten(1)
        mixed = torch.lerp(torch.lerp(a, b, fu), torch.lerp(c, d, fu), fv)
        nearest = (v.round().long() * width + u.round().long()).flatten(1)
        # Next to an unknown pixel a mixture would be a surface that is not there.
        known = (a > 0) & (b > 0) & (c > 0) & (d > 0)
        seen = torch.where(known, mixed, flat.gather(1, nearest))
        lost = lost.flatten(1).gather(1, nearest) | (seen <= 0)
        return seen.view_as(disparity), lost.view_as(disparity)

    def _grazing(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """Lost with probability σ((angle − grazing) / 2°), the angle being between the ray and the surface normal."""
        height, width = z.shape[-2:]
        zu, zv = _slope(z, -1), _slope(z, -2)
        u = (torch.arange(width, device=z.device) - width / 2) / self.focal
        v = (torch.arange(height, device=z.device)[:, None] - height / 2) / self.focal
        # n ∝ (f·z_u, f·z_v, −(z + u·z_u + v·z_v)), with u and v from the centre; its product with the ray is −z.
        gu, gv = self.focal * zu, self.focal * zv
        normal = (gu.square() + gv.square() + (z + u * gu + v * gv).square()).sqrt()
        cosine = z / (normal * (1 + u * u + v * v).sqrt()).clamp_min(1e-9)
        angle = torch.rad2deg(torch.acos(cosine.clamp(0, 1)))
        chance = torch.rand(z.shape, generator=generator, device=z.device)
        return chance < torch.sigmoid((angle - self.grazing) / 2.0)

    def _shadow(self, disparity: Tensor) -> Tensor:
        """Lost where something nearer stands in the projector's line: pixel u lies at u − d for the projector."""
        width = disparity.shape[-1]
        column = torch.arange(width, device=disparity.device) - disparity
        margin = 1 + math.ceil(self.focal * self.baseline / self.near)
        low = (column + margin).floor().long().clamp(0, width + margin)
        nearest = torch.zeros(*disparity.shape[:-1], width + margin + 2, device=disparity.device)
        # Each pixel covers the two columns next to it, so that a surface that spreads out has no gaps.
        nearest.scatter_reduce_(-1, low, disparity, "amax")
        nearest.scatter_reduce_(-1, low + 1, disparity, "amax")
        front = torch.minimum(nearest.gather(-1, low), nearest.gather(-1, low + 1))
        # A surface meets itself within its own columns; only what is a pixel of disparity nearer is another one.
        return front > disparity + 1.5


def _noise(
    shape: Sequence[int], generator: torch.Generator, correlated: Tensor | None, white: float, widths: Sequence[float]
) -> Tensor:
    """White noise of unit variance; where ``correlated``, ``white`` times that and smoothed noise of each width."""
    noise = torch.randn(*shape, generator=generator, device=generator.device)
    if correlated is None:
        return noise
    smooth = sum(_smoothed(shape, width, generator) for width in widths)
    return torch.where(correlated, white * noise + smooth, noise)


def _smoothed(shape: Sequence[int], width: float, generator: torch.Generator) -> Tensor:
    """White noise under a Gaussian window of this standard deviation in pixels, scaled to unit variance."""
    reach = math.ceil(3 * width)
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=generator.device) / width).square())
    line = line / line.norm()
    padded = (shape[0] * shape[1], 1, shape[2] + 2 * reach, shape[3] + 2 * reach)
    white = torch.randn(*padded, generator=generator, device=generator.device)
    return F.conv2d(F.conv2d(white, line.view(1, 1, 1, -1)), line.view(1, 1, -1, 1)).view(*shape)


def _slope(z: Tensor, axis: int) -> Tensor:
    """The smaller of the two one-sided differences: a surface's own slope, and not the jump at its edge."""
    step = z.diff(dim=axis)
    pad = (1, 0) if axis == -1 else (0, 0, 1, 0)
    end = (0, 1) if axis == -1 else (0, 0, 0, 1)
    before, after = F.pad(step, pad, value=math.inf), F.pad(step, end, value=math.inf)
    slope = torch.where(before.abs() < after.abs(), before, after)
    return torch.where(slope.isfinite(), slope, 0.0)
