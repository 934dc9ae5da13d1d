"""Double backprop through the whole graph."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Inspect, Potential
from spen.gradients.second_order import require_second_derivative, require_twice_differentiable
from spen.protocols import GradientStrategy


class Exact(GradientStrategy):
    """Keep the graph of every step and let autograd differentiate it all.

    Time: the fastest on a CPU. Memory: every activation of the energy, T times.
    """

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        if start.shape[0] > 0:
            require_second_derivative(potential, descend, start)
        inspect: Inspect | None = require_twice_differentiable  # at the first step of every descent

        def gradient(moving: Potential, point: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal inspect
            found = moving.differentiable_gradient(point, inspect)
            inspect = None
            return found

        return descend(potential, start, gradient)

    def __repr__(self) -> str:
        return "Exact()"
