"""ℝⁿ."""

from __future__ import annotations

from torch import Tensor

from spen.protocols import Domain


class Reals(Domain):
    """y_{t+1} = y_t − d, without constraints."""

    def enter(self, start: Tensor) -> Tensor:
        return start

    def output(self, z: Tensor) -> Tensor:
        return z

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        return z - direction

    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        return tangent

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent
