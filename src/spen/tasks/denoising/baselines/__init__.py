"""The systems of Table 1 that descend no energy: classical filters, a filter forest, feed-forward nets."""

from spen.tasks.denoising.baselines.classical import BM3D, TotalVariation
from spen.tasks.denoising.baselines.forest import FilterForest
from spen.tasks.denoising.baselines.networks import ConvNet, ProximalNet

__all__ = ["BM3D", "ConvNet", "FilterForest", "ProximalNet", "TotalVariation"]
