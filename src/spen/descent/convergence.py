"""When an example has converged (Sec. 4.3). Examples are tested independently of each other."""

from __future__ import annotations

from torch import Tensor

from spen.tensors import flat


class RelativeChange:
    """‖y_t − y_{t−1}‖ ≤ tolerance · ‖y_{t−1}‖, for each example."""

    def __init__(self, tolerance: float) -> None:
        if not tolerance > 0:
            raise ValueError(f"the tolerance must be positive, not {tolerance}")
        self.tolerance = tolerance

    def converged(self, before: Tensor, after: Tensor) -> Tensor:
        change = flat(after - before).norm(dim=1)
        return change <= self.tolerance * flat(before).norm(dim=1)

    def __repr__(self) -> str:
        return f"RelativeChange({self.tolerance})"
