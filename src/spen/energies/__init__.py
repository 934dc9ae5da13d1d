"""Energies and what they are made of."""

from spen.energies.compose import Energy, EntropySmoothed, Linear, NegativeEntropy, Scaled, Sum
from spen.energies.constraints import SoftNand, soft_nand
from spen.energies.convex import ICNN, NonNegativeConv2d, NonNegativeLinear
from spen.energies.smooth import SoftAbs, Softplus

__all__ = [
    "ICNN",
    "Energy",
    "EntropySmoothed",
    "Linear",
    "NegativeEntropy",
    "NonNegativeConv2d",
    "NonNegativeLinear",
    "Scaled",
    "SoftAbs",
    "SoftNand",
    "Softplus",
    "Sum",
    "soft_nand",
]
