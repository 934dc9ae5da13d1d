"""Denoisers with nothing to learn but one strength: total variation and BM3D.

    denoise(noisy, valid) -> image        (H, W) float32 in units of the peak, (H, W) bool -> (H, W) float32

Holes take the nearest reading before the filter and are filled anew from the denoised readings after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from skimage.restoration import denoise_tv_chambolle

from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.holes import Image, Mask, fill_nearest, fill_smooth
from spen.tasks.denoising.metrics import mean_over_frames, psnr


class Denoiser(Protocol):
    """What denoises one image on a CPU."""

    def denoise(self, noisy: Image, valid: Mask) -> Image:  # (H, W), (H, W) -> (H, W)
        ...


DenoiserT = TypeVar("DenoiserT", bound=Denoiser)


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
                "BM3D needs the package bm3d, which is not installed; run `pip install 'spen[baselines]'`"
            ) from None
        smoothed = bm3d(fill_nearest(noisy, valid).astype(np.float64), self.sigma)
        return fill_smooth(smoothed.astype(np.float32), valid)


REAL_DEPTH_TV = tuple(TotalVariation(weight) for weight in (0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01))
REAL_DEPTH_BM3D = tuple(BM3D(sigma) for sigma in (0.004, 0.005, 0.006, 0.007, 0.008, 0.01))
"""Candidates where the noise is a few thousandths of the range, as on RedKitchen."""

STRONG_TV = tuple(TotalVariation(weight) for weight in (0.03, 0.045, 0.06, 0.075, 0.09, 0.12))
STRONG_BM3D = tuple(BM3D(sigma) for sigma in (0.05, 0.065, 0.08, 0.1, 0.125))
"""Candidates where the noisy image has about 30 dB."""


@dataclass(frozen=True)
class Tuned(Generic[DenoiserT]):
    """The candidate with the highest mean PSNR, and the mean PSNR of each."""

    best: DenoiserT
    scores: tuple[tuple[DenoiserT, float], ...]


def tune(frames: Iterable[Frame], candidates: Sequence[DenoiserT]) -> Tuned[DenoiserT]:
    """Denoise the frames (of a development set, never of a test set) with each candidate; the best mean PSNR wins."""
    kept = list(frames)
    if not kept or not candidates:
        raise ValueError(f"tuning needs frames and candidates, not {len(kept)} and {len(candidates)}")
    scores = tuple((candidate, mean_psnr(candidate, kept)) for candidate in candidates)
    return Tuned(best=max(scores, key=lambda pair: pair[1])[0], scores=scores)


def mean_psnr(denoiser: Denoiser, frames: Iterable[Frame], *, surface: bool = False) -> float:
    """PSNR a frame over its scored pixels (or those on surfaces), then the mean over frames."""
    values = []
    for frame in frames:
        answer = torch.from_numpy(denoiser.denoise(frame.noisy[0].numpy(), frame.valid[0].numpy()))[None]
        values.append(psnr(answer, frame.truth, frame.surface if surface else frame.scored))
    return mean_over_frames(torch.stack(values)) if values else float("nan")
