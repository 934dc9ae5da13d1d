"""Which errors models of depth maps remove: by the size of their structure, on a real sensor and on a simulated one.

    python docs/scripts/depth_errors.py              # the model depth; needs RedKitchen in the data folder
    python docs/scripts/depth_errors.py RUN RUN      # run folders, on the real sensor alone

The error of an image is blurred under Gaussian windows of 1, 2, 4, 8 and 16 pixels; a band is what lies between two of
them. Mean squares over surface pixels, in mm².
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from spen.models import open_model
from spen.tasks.denoising.data import PEAK_M, Frame, depth_frame
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.losses import observation
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.sensor import Sensor

WIDTHS = (1, 2, 4, 8, 16)


def bands(error: NDArray[np.float64], counts: NDArray[np.bool_]) -> Iterator[float]:
    """The whole error, its bands from fine to coarse, and the share of the worst hundredth of the pixels."""
    squares = np.sort(error[counts] ** 2)
    yield squares.mean()
    finer = error
    for width in WIDTHS:
        mean = gaussian_filter(error * counts, width) / gaussian_filter(counts.astype(float), width).clip(1e-3)
        yield ((finer - mean)[counts] ** 2).mean()
        finer = mean
    yield (finer[counts] ** 2).mean()
    yield squares[-len(squares) // 100 :].sum() / squares.sum()


def line(name: str, frames: list[Frame], answers: list[torch.Tensor]) -> str:
    found = []
    for frame, answer in zip(frames, answers, strict=True):
        counts = frame.surface[0].numpy()
        error = 1000 * PEAK_M * (answer.double() - frame.truth.double())[0].numpy() * counts
        found.append(list(bands(error, counts)))
    return f"| {name} | " + " | ".join(f"{value:.2g}" for value in np.mean(found, 0)) + " |"


def main() -> None:
    runs = sys.argv[1:]
    splits, generator = open_splits(find_regime("redkitchen")), torch.Generator()
    models: dict[str, Any] = {name: open_model(name) for name in runs or ["depth"]}
    real = [splits.dev.frame(i) for i in range(0, len(splits.dev), 8)]
    generator.manual_seed(0)
    sensor = Sensor(correlated=True)
    simulated = [depth_frame(*sensor(PEAK_M * f.truth, generator), PEAK_M * f.truth) for f in real]
    print(
        "| | all | "
        + " | ".join(["below 1", *(f"{a} to {b}" for a, b in pairwise(WIDTHS))])
        + f" | above {WIDTHS[-1]} | worst 1 % |"
    )
    for name, frames in (("RedKitchen", real), ("`kinect:1`", simulated))[: 1 if runs else 2]:
        print(line(f"{name}, readings", frames, [f.noisy for f in frames]))
        inputs = [type(o)(*(part[None] for part in o)) for o in map(observation, frames)]
        for of, model in models.items():
            with torch.no_grad():
                answers = [model.denoise(x)[0] for x in inputs]
            print(line(f"{name}, `{of}`", frames, answers), flush=True)


if __name__ == "__main__":
    main()
