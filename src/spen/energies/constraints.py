"""Hard rules as energies: α·SoftPlus(a + b − 1) for ¬(a ∧ b) (Sec. 6.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from spen.energies.compose import Energy
from spen.parameters import Positive
from spen.protocols import Features

Pairs = Callable[[Tensor, Features], tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]]


def soft_nand(a: Tensor, b: Tensor, temperature: float = 1.0) -> Tensor:
    """SoftPlus(a + b − 1): large when both are on, for relaxations a, b ∈ [0, 1]."""
    return F.softplus(a + b - 1, beta=temperature)


class SoftNand(Energy):
    """α Σ SoftPlus(a + b − 1) over pairs that exclude each other, with a learned α > 0.

    ``pairs(y, features)`` returns (a, b), or (a, b, weight) where weight 0 drops a padded pair; all (B, …).
    """

    def __init__(self, pairs: Pairs, *, weight: float = 1.0, learned: bool = True, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the softplus temperature must be positive, not {temperature}")
        self.pairs = pairs
        self.temperature = temperature
        self.weight = Positive(weight, learned=learned, name="a constraint's weight")

    def forward(self, y: Tensor, features: Features) -> Tensor:
        a, b, *mask = self.pairs(y, features)
        penalty = soft_nand(a, b, self.temperature)
        if mask:
            penalty = penalty * mask[0]
        return self.weight() * penalty.flatten(1).sum(1)
