"""Denoisers with nothing to learn but one strength: total variation and BM3D.

    denoise(noisy, valid) -> image        (H, W) float32 in units of the peak, (H, W) bool -> (H, W) float32

Holes take the nearest reading before the filter and are filled anew from the denoised readings after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from skimage.restoration import denoise_tv_chambolle
from torch import Tensor

from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.energy import Observed
from spen.tasks.denoising.holes import Image, Mask, fill_nearest, fill_smooth
from spen.tasks.denoising.metrics import mean_over_frames, psnr


class Denoiser(Protocol):
    """What denoises one image on a CPU."""

    def denoise(self, noisy: Image, valid: Mask) -> Image:  # (H, W), (H, W) -> (H, W)
        ...


DenoiserT = TypeVar("DenoiserT", bound=Denoiser)


def batched(denoiser: Denoiser) -> Callable[[Observed], Tensor]:
    """The denoiser for batches of observations."""

    def denoise(x: Observed) -> Tensor:  # (B, 1, H, W) twice -> (B, 1, H, W)
        images = zip(x.image[:, 0].numpy(), x.seen[:, 0].numpy() > 0, strict=True)
        return torch.from_numpy(np.stack([denoiser.denoise(image, seen) for image, seen in images]))[:, None].float()

    return denoise


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, not {value}; it is in units of the peak")


@dataclass(frozen=True)
class TotalVariation:
    """min_y ½‖y − x‖² + weight · Σ|∇y|, by Chambolle's dual projection (2004), as scikit-image has it.

    It is stopped where scikit-image stops by default: carried to convergence it flattens more, and loses 0.25 dB on
    real depth. Split Bregman was 0.4 dB below it there, and level with it on the built-in rooms.
    """

    weight: float = 0.006

    def __post_init__(self) -> None:
        _check_positive("the weight of total variation", self.weight)

    def denoise(self, noisy: Image, valid: Mask) -> Image:
        smoothed = denoise_tv_chambolle(fill_nearest(noisy, valid), weight=self.weight)
        return fill_smooth(smoothed.astype(np.float32), valid)


@dataclass(frozen=True)
class BM3D:
    """Block matching and collaborative filtering (Dabov et al. 2007) for noise of standard deviation ``sigma``.

    It is the authors' own package `bm3d`, whose licence is for non-commercial use; hence an extra.
    """

    sigma: float = 0.008

    def __post_init__(self) -> None:
        _check_positive("the noise of BM3D", self.sigma)

    def denoise(self, noisy: Image, valid: Mask) -> Image:
        try:
            from bm3d import bm3d
        except ImportError:
            raise ModuleNotFoundError(
                "BM3D needs the package bm3d, which is not installed; run `pip install bm3d`"
            ) from None
        smoothed = bm3d(fill_nearest(noisy, valid).astype(np.float64), self.sigma)
        return fill_smooth(smoothed.astype(np.float32), valid)


CANDIDATES: dict[tuple[str, bool], tuple[TotalVariation | BM3D, ...]] = {
    ("tv", True): tuple(TotalVariation(weight) for weight in (0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01)),
    ("bm3d", True): tuple(BM3D(sigma) for sigma in (0.004, 0.005, 0.006, 0.007, 0.008, 0.01)),
    ("tv", False): tuple(TotalVariation(weight) for weight in (0.03, 0.045, 0.06, 0.075, 0.09, 0.12)),
    ("bm3d", False): tuple(BM3D(sigma) for sigma in (0.05, 0.065, 0.08, 0.1, 0.125)),
}
"""By method, and whether noise is real: a few thousandths of the range, as on RedKitchen, or about 30 dB."""


def tune(frames: Sequence[Frame], candidates: Sequence[DenoiserT]) -> tuple[DenoiserT, list[float]]:
    """The candidate with the highest mean PSNR on the frames (of a development set), and the mean PSNR of each."""
    if not frames or not candidates:
        raise ValueError(f"tuning needs frames and candidates, not {len(frames)} and {len(candidates)}")
    scores = [mean_psnr(candidate, frames) for candidate in candidates]
    return candidates[int(np.argmax(scores))], scores


def mean_psnr(denoiser: Denoiser, frames: Sequence[Frame], *, surface: bool = False) -> float:
    """PSNR of each frame over its scored pixels (or those on surfaces), then the mean over frames."""
    values = []
    for frame in frames:
        answer = torch.from_numpy(denoiser.denoise(frame.noisy[0].numpy(), frame.valid[0].numpy()))[None]
        values.append(psnr(answer, frame.truth, frame.surface if surface else frame.scored))
    return mean_over_frames(torch.stack(values))
