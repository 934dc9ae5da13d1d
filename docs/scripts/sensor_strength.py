"""PSNR(strength) = 30 dB, solved on development frames. python docs/scripts/sensor_strength.py

The strengths of the data sets come from it; run it again after any change of the sensor model or of the rooms. It also
prints the strength at which elementary processing has 30 dB: holes take the nearest reading, then a 5×5 median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from scipy.ndimage import median_filter
from torch import Tensor

from spen.tasks.denoising.data import DepthPairs, Rooms
from spen.tasks.denoising.holes import fill_nearest
from spen.tasks.denoising.images import PEAK_M
from spen.tasks.denoising.metrics import mean_over_frames, psnr
from spen.tasks.denoising.sensor import Sensor
from spen.tasks.locations import find_data


def calibrate(
    score: Callable[[float], float],  # strength → PSNR in dB
    target: float = 30.0,
    bracket: Iterable[float] = (0.25, 64.0),
    tolerance: float = 0.005,
) -> float:
    """The strength whose PSNR is `target`, by bisection of its logarithm: PSNR falls as strength grows."""
    low, high = bracket
    if not score(low) > target > score(high):
        raise ValueError(f"{target} dB is not reached between strengths {low} and {high}")
    while True:
        middle = math.sqrt(low * high)
        value = score(middle)
        if abs(value - target) < tolerance or high / low < 1.0005:
            return middle
        low, high = (middle, high) if value > target else (low, middle)


def strength_for(
    truths: Sequence[Tensor],  # (1, H, W) each, metres
    target: float = 30.0,
    process: Callable[[Tensor, Tensor], Tensor] = lambda depth, valid: depth,
) -> float:
    """The strength at which these maps, read and processed, have `target` dB; the same noise at every strength."""

    def score(strength: float) -> float:
        values = []
        for seed, truth in enumerate(truths):
            depth, valid = Sensor(strength)(truth, torch.Generator().manual_seed(seed))
            values.append(psnr(process(depth, valid) / PEAK_M, truth / PEAK_M, valid & (truth > 0)))
        return mean_over_frames(torch.stack(values))

    return calibrate(score, target)


def elementary(depth: Tensor, valid: Tensor) -> Tensor:  # (1, H, W) twice -> (1, H, W)
    """A 5×5 median of the readings, the nearest one in the holes."""
    return torch.from_numpy(median_filter(fill_nearest(depth[0].numpy(), valid[0].numpy()), 5))[None]


def main() -> None:
    rooms = Rooms("dev", 32)
    pairs = DepthPairs(find_data("denoising/redkitchen"), "dev")
    for name, frames in (("ROOMS", rooms), ("REDKITCHEN", pairs)):
        truths = [frames.truth(i) for i in range(len(frames))]
        print(f"STRENGTH_30DB_{name} = {strength_for(truths):.2f}")
        print(f"elementary processing has 30 dB at {strength_for(truths, process=elementary):.1f}")


if __name__ == "__main__":
    main()
