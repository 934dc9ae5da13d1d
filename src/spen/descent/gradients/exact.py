"""Double backprop through the whole graph."""

from __future__ import annotations

from torch import Tensor

from spen.descent.gradients.second_order import require_second_derivative
from spen.descent.loop import Descend, Path
from spen.descent.potential import Potential
from spen.protocols import GradientStrategy


class Exact(GradientStrategy):
    """Keep the graph of every step and let autograd differentiate it all.

    Time: the fastest on a CPU. Memory: every activation of the energy, T times.
    """

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Path:
        if start.shape[0] > 0:
            require_second_derivative(potential, descend, start)
        return descend(potential, start, Potential.differentiable_gradient)

    def __repr__(self) -> str:
        return "Exact()"
