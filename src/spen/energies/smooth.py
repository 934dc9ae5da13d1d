"""Non-linearities with two derivatives: the descent differentiates the energy twice (Sec. 5)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Softplus(nn.Module):
    """SoftPlus_β(y) = log(1 + e^{βy}) / β: a ReLU with a corner rounded over 1/β. The paper's temperature is β."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the softplus temperature must be positive, not {temperature}")
        self.temperature = temperature

    def forward(self, y: Tensor) -> Tensor:
        return F.softplus(y, beta=self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class SoftAbs(nn.Module):
    """SoftAbs(y) = ½ SoftPlus(y) + ½ SoftPlus(−y): ½|y| with two derivatives, as Eq. 14 writes it.

    The paper calls it a replacement for |·|; the halves make it ½|y| far from 0. Learned filters absorb the factor.
    """

    def __init__(self, temperature: float = 25.0) -> None:
        super().__init__()
        self.softplus = Softplus(temperature)

    def forward(self, y: Tensor) -> Tensor:
        return 0.5 * self.softplus(y) + 0.5 * self.softplus(-y)
