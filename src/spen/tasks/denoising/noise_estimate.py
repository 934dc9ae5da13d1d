"""σ̂² = a low quartile, over high frequencies, of the mean squared DCT coefficients of the flattest 8×8 windows.

White noise has independent coefficients of one variance in an orthonormal transform, so choosing windows by their low
frequencies does not bias the high ones. Texture adds to some frequencies and not to others, hence the quartile. A depth
sensor's noise is white in disparity 1/z, in which planes are linear.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import PEAK_M
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.sensor import Sensor
from spen.tasks.denoising.simulate import SENSOR_UNIT

SIDE = 8
FEWEST = 16
"""Windows needed at least; for an image with fewer the estimate is 0, and nothing is removed."""

_SHARE = {"gaussian": 0.02, "depth-sensor": 0.1}  # of all windows; noise in steps needs more windows to average over


def noise_estimate(x: Observation, kind: Kind) -> Tensor:  # (B, 1, 1, 1)
    """The noise level of each image in units of the image."""
    if kind == "depth-sensor":
        return SENSOR_UNIT * sensor_strength(x.image, x.seen).view(-1, 1, 1, 1)
    return gaussian_sigma(x.image, x.seen).view(-1, 1, 1, 1)


def frame_noise(frame: Frame, kind: Kind) -> Tensor:  # ()
    """The noise level of a frame. Of colours the plane with the least noise: the others have texture."""
    return noise_estimate(Observation(frame.noisy[:, None], frame.valid[:, None].float()), kind).min()


def gaussian_sigma(image: Tensor, seen: Tensor | None = None) -> Tensor:  # (B, 1, H, W) -> (B,)
    """The standard deviation of white noise, in units of the image."""
    seen = torch.ones_like(image) if seen is None else seen
    return torch.stack([_deviation(i, s, _SHARE["gaussian"]) for i, s in zip(image, seen, strict=True)])


def sensor_strength(image: Tensor, seen: Tensor) -> Tensor:  # (B, 1, H, W), depth / 4 m -> (B,)
    """How many times as strong as that of a Kinect the noise is (``Sensor.strength``)."""
    sensor = Sensor()
    fb = sensor.focal * sensor.baseline
    disparity = fb / (PEAK_M * image.clamp_min(1e-4))
    # Readings at the ends of the range are clamped there: they have lost half of their noise.
    inside = (disparity > fb / sensor.far * 1.0001) & (disparity < fb / sensor.near * 0.9999)
    known = inside & (seen > 0)
    disparity = torch.where(known, disparity, 0.0)
    # Rounding to steps of q adds q²/12 to the variance.
    unit = math.sqrt(sensor.axial**2 + sensor.quantum**2 / 12)
    found = [_deviation(d, k.float(), _SHARE["depth-sensor"]) for d, k in zip(disparity, known, strict=True)]
    return torch.stack(found) / unit


def _deviation(image: Tensor, seen: Tensor, share: float) -> Tensor:  # (1, H, W) -> ()
    basis, order = _basis(image)
    if min(image.shape[-2:]) < SIDE:
        return image.new_zeros(())
    stride = 1 if image.numel() < 2**19 else 2 if image.numel() < 2**21 else 4
    coefficients = F.conv2d(image[None], basis, stride=stride)[0].flatten(1)  # (64, windows)
    whole = -F.max_pool2d(-seen[None].to(image), SIDE, stride).flatten() > 0
    if not whole.any():
        return image.new_zeros(())
    coefficients = coefficients[:, whole]
    low = (order > 0) & (order < SIDE)
    rough = coefficients[low].square().sum(0)
    # Constant windows at either end of the range are overexposed or black: their noise has been cut off.
    level = coefficients[0] / SIDE
    cut_off = (rough < 1e-10) & ((level > image.max() - 1e-4) | (level < image[seen > 0].min() + 1e-4))
    coefficients, rough = coefficients[:, ~cut_off], rough[~cut_off]
    if len(rough) < FEWEST:
        return image.new_zeros(())
    count = max(FEWEST, int(share * len(rough)))
    flattest = rough.topk(count, largest=False).indices
    return coefficients[order >= SIDE][:, flattest].square().mean(1).quantile(0.25).sqrt()


def _basis(like: Tensor) -> tuple[Tensor, Tensor]:  # (64, 1, 8, 8), and the sum of both frequencies, (64,)
    """The orthonormal DCT of a window as filters."""
    k = torch.arange(SIDE, dtype=torch.float64)
    line = math.sqrt(2 / SIDE) * torch.cos(math.pi / SIDE * k[:, None] * (k + 0.5))
    line[0] /= math.sqrt(2)
    basis = torch.einsum("ai,bj->abij", line, line).reshape(SIDE**2, 1, SIDE, SIDE)
    return basis.to(like), (k[:, None] + k).flatten().long().to(like.device)
