"""[0, 1]ⁿ: relaxed binary labels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spen.protocols import Domain

BoxUpdate = Literal["projected", "logits", "through_logits"]


class Box(Domain):
    """The box [0, 1]ⁿ, by one of three updates.

    ``projected``       y ← Clip_{0,1}[y − d]. Init returns y_0, clipped. The gradient is exactly 0 where it clips.
    ``logits``          l ← l − η ∇E(sigmoid(l)): Eq. 8 for two classes. Init returns logits.
    ``through_logits``  l ← l − η ∇_l E(sigmoid(l)). Init returns logits.
    """

    def __init__(self, update: BoxUpdate = "projected") -> None:
        super().__init__()
        if update not in ("projected", "logits", "through_logits"):
            raise ValueError(f'Box has no update {update!r}; choose "projected", "logits" or "through_logits"')
        self.update = update
        self.through = update == "through_logits"

    def enter(self, start: Tensor) -> Tensor:
        return start.clamp(0, 1) if self.update == "projected" else start

    def output(self, z: Tensor) -> Tensor:
        return z if self.update == "projected" else torch.sigmoid(z)

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        moved = z - direction
        return moved.clamp(0, 1) if self.update == "projected" else moved

    # What lies on a face cannot move off it. In logits, √(y(1 − y)) rescales the Hessian of a binary entropy,
    # 1/(y(1 − y)), to one, which is what conjugate gradients like.
    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        return tangent * self._room(y)

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent * self._room(y)

    def _room(self, y: Tensor) -> Tensor:
        if self.update == "projected":
            return ((y > 0) & (y < 1)).to(y.dtype)
        return (y * (1 - y)).clamp_min(0).sqrt()

    def extra_repr(self) -> str:
        return f'update="{self.update}"'
