"""The systems of Table 1 that descend no energy: classical filters, a filter forest, feed-forward nets."""

from spen.tasks.denoising.baselines.classical import (
    BM3D,
    REAL_DEPTH_BM3D,
    REAL_DEPTH_TV,
    STRONG_BM3D,
    STRONG_TV,
    Denoiser,
    TotalVariation,
    Tuned,
    mean_psnr,
    tune,
)
from spen.tasks.denoising.baselines.forest import FilterForest, ForestConfig
from spen.tasks.denoising.baselines.holes import fill_nearest, fill_pyramid, fill_smooth
from spen.tasks.denoising.baselines.networks import ConvNet, ProximalNet, feedforward_model, parameter_count

__all__ = [
    "BM3D",
    "REAL_DEPTH_BM3D",
    "REAL_DEPTH_TV",
    "STRONG_BM3D",
    "STRONG_TV",
    "ConvNet",
    "Denoiser",
    "FilterForest",
    "ForestConfig",
    "ProximalNet",
    "TotalVariation",
    "Tuned",
    "feedforward_model",
    "fill_nearest",
    "fill_pyramid",
    "fill_smooth",
    "mean_psnr",
    "parameter_count",
    "tune",
]
