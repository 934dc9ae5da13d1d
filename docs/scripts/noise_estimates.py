"""How well the noise of an image is found: the tables of "Denoise your own images".

python docs/scripts/noise_estimates.py            # set12 under $SPEN_DATA, rooms built in; a minute on a CPU
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from spen.tasks.denoising.data import Images, Rooms, Simulated
from spen.tasks.denoising.images import list_images
from spen.tasks.denoising.losses import planes
from spen.tasks.denoising.noise import parse_noise
from spen.tasks.denoising.noise_estimate import gaussian_sigma, sensor_strength
from spen.tasks.locations import find_data

SIGMAS = (0, 5, 10, 15, 25, 50)
STRENGTHS = (0.5, 1, 2, 4, 8, 12, 15)


def immerkaer(image: Tensor) -> float:  # (1, H, W)
    """Mean |n ∗ x| · √(π/2) / 6, n the difference of two Laplacians (Immerkær, 1996)."""
    kernel = torch.tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])
    return float(F.conv2d(image[None], kernel[None, None]).abs().mean()) * math.sqrt(math.pi / 2) / 6


def wavelet(image: Tensor) -> float:
    """The median of the finest diagonal wavelet coefficients / 0.6745 (Donoho and Johnstone, 1994)."""
    from skimage.restoration import estimate_sigma

    return float(estimate_sigma(image[0].numpy()))


def eigenvalues(image: Tensor) -> float:
    """The mean of the smallest eigenvalues of 8×8 patches that have their median as mean (Chen, Zhu and Heng, 2015)."""
    patches = F.unfold(image[None].double(), 8)[0]
    values = torch.linalg.eigvalsh(torch.cov(patches))
    for count in range(len(values), 0, -1):
        if values[:count].mean() <= values[:count].median():
            return float(values[:count].mean().clamp_min(0).sqrt())
    return float(values[0].clamp_min(0).sqrt())


def ours(image: Tensor) -> float:
    return float(gaussian_sigma(image[None]))


ESTIMATORS: dict[str, Callable[[Tensor], float]] = {
    "Immerkær": immerkaer,
    "wavelet median": wavelet,
    "eigenvalues of patches": eigenvalues,
    "DCT of flat windows (used)": ours,
}


def gaussian_table(sigmas: tuple[float, ...] = SIGMAS) -> list[str]:
    """Smallest and largest error over the twelve images, in per cent; for σ = 0 the largest estimate."""
    lines = ["| estimator | " + " | ".join(f"σ {s:g}" for s in sigmas) + " |", "| --- |" + " --- |" * len(sigmas)]
    images = Images(list_images(find_data("denoising", "set12")))
    for name, estimator in ESTIMATORS.items():
        cells = []
        for sigma in sigmas:
            frames = Simulated(images, parse_noise(f"gaussian:{sigma:g}"), seed=1, purpose=4)
            found = [255 * estimator(frames.frame(index).noisy) for index in range(len(frames))]
            errors = [100 * (x / sigma - 1) for x in found] if sigma else []
            cells.append(f"{min(errors):+.0f} … {max(errors):+.0f} %" if sigma else f"≤ {max(found):.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def sensor_table(strengths: tuple[float, ...] = STRENGTHS, rooms: int = 20) -> list[str]:
    """The same for the strength of a depth sensor, over development rooms."""
    cells = []
    for strength in strengths:
        frames = Simulated(Rooms("dev", rooms), parse_noise(f"depth-sensor:{strength:g}"), purpose=1)
        observed = [planes(frames.frame(index)) for index in range(rooms)]
        errors = [100 * (float(sensor_strength(x.image, x.seen)) / strength - 1) for x in observed]
        cells.append(f"{min(errors):+.0f} … {max(errors):+.0f} %")
    head = "| strength | " + " | ".join(f"{s:g}" for s in strengths) + " |"
    return [head, "| --- |" + " --- |" * len(strengths), f"| {rooms} rooms | " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("\n".join([*gaussian_table(), "", *sensor_table()]))
