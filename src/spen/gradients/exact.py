"""Double backprop through the whole graph: of the energy, or of its own formula of ∇E."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Inspect, Potential, identity
from spen.energies import Energy
from spen.energies.compose import knows_step
from spen.gradients.second_order import require_second_derivative, require_twice_differentiable
from spen.protocols import Formula, GradientStrategy


class Exact(GradientStrategy):
    """Keep the graph of every step and let autograd differentiate all of it.

    Time: the fastest on a CPU. Memory: every activation of the energy, T times.
    """

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        if start.shape[0] > 0:
            require_second_derivative(potential, descend, start)
        inspect: Inspect | None = require_twice_differentiable  # at the first step of every descent

        def gradient(moving: Potential, point: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal inspect
            found = moving.differentiable_gradient(point, inspect)
            inspect = inspect if knows_step(potential.energy) else None  # of every step if each may be another function
            return found

        return descend(potential, start, gradient)


class Written(GradientStrategy):
    """Keep the graph of every step's formula of ∇E (``Energy.formula``) and let autograd differentiate that.

    Autograd differentiates the formula once, where other strategies differentiate E twice. What does not depend on y is
    computed once a descent. Memory grows with T as for ``Exact``, which is used where an energy has no formula or the
    domain differentiates through its output map.
    """

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        bound: tuple[Potential, Formula | None] = potential, _formula(potential)
        if bound[1] is None:
            return Exact().run(descend, potential, start)

        def gradient(moving: Potential, y: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal bound
            if moving is not bound[0]:  # some examples have left the batch
                bound = moving, _formula(moving)
            assert bound[1] is not None
            slope, energies = bound[1](y)
            return slope, energies.detach()

        return descend(potential, start, gradient)


def _formula(potential: Potential) -> Formula | None:
    if potential.view is not identity or not isinstance(potential.energy, Energy) or potential.energy.knows_step:
        return None
    return potential.energy.formula(potential.features)
