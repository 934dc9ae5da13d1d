"""The noise of a real depth sensor and of the simulated ones: its size and its correlation between neighbours.

python docs/scripts/sensor_noise.py    # needs RedKitchen's training frames in the data folder
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from spen.tasks.denoising.data import PEAK_M, Frame, depth_frame
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.noise_estimate import sensor_strength
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.sensor import Sensor

LAGS = (1, 2, 3, 5, 8)
FOCAL_BASELINE = Sensor().focal * Sensor().baseline


def errors(frame: Frame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The error of disparity, in pixels, and where it counts: on surfaces, but for readings a pixel off."""
    surface = frame.surface[0].numpy()
    noisy, truth = (PEAK_M * part[0].double().numpy() for part in (frame.noisy, frame.truth))
    error = np.zeros_like(truth)
    error[surface] = FOCAL_BASELINE / noisy[surface] - FOCAL_BASELINE / truth[surface]
    error[surface] -= np.median(error[surface])
    return error, surface & (np.abs(error) < 1)


def correlation(error: NDArray[np.float64], counts: NDArray[np.bool_], lag: int) -> float:
    """The mean of both directions."""
    found = []
    for e, m in ((error, counts), (error.T, counts.T)):
        both = m[:, :-lag] & m[:, lag:]
        found.append((e[:, :-lag] * e[:, lag:])[both].mean())
    return float(np.mean(found) / (error[counts] ** 2).mean())


def readings(frames: list[Frame], sensor: Sensor) -> Iterator[Frame]:
    """The same frames as a simulated sensor sees them."""
    generator = torch.Generator().manual_seed(0)
    for frame in frames:
        yield depth_frame(*sensor(PEAK_M * frame.truth, generator), PEAK_M * frame.truth)


def line(name: str, frames: list[Frame]) -> str:
    found = [errors(frame) for frame in frames]
    size = np.mean([e[m].std() for e, m in found])
    lags = (np.mean([correlation(e, m, lag) for e, m in found]) for lag in LAGS)
    return f"| {name} | {size:.3f} | " + " | ".join(f"{value:.2f}" for value in lags) + " |"


def strengths(frames: list[Frame]) -> str:
    """The smallest and the largest estimate of the strength."""
    found = [float(sensor_strength(f.noisy[None], f.valid[None].float())) for f in frames]
    return f"estimated strength {min(found):.2f} to {max(found):.2f}"


def main() -> None:
    splits = open_splits(find_regime("redkitchen"))
    frames = [splits.train.frame(i) for i in range(0, len(splits.train), 20)]
    print(line("RedKitchen", frames), strengths(frames))
    for name, correlated in (("`kinect:1`", True), ("`depth-sensor:1`", False)):
        simulated = list(readings(frames, Sensor(correlated=correlated)))
        print(line(name, simulated), strengths(simulated))


if __name__ == "__main__":
    main()
