"""∇E by the energy's own formula: one derivative of it is to be taken, where other strategies take two of E."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential, identity
from spen.energies import Energy
from spen.gradients.exact import Exact
from spen.protocols import Formula, GradientStrategy


class Written(GradientStrategy):
    """Keep the graph of every step's formula of ∇E (``Energy.formula``) and let autograd differentiate that.

    What does not depend on y is computed once a descent, and what autograd's own gradient would compute beside the
    formula never. Memory grows with T as for ``Exact``, which takes over where an energy has no formula or the domain
    differentiates through its output map.
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

    def __repr__(self) -> str:
        return "Written()"


def _formula(potential: Potential) -> Formula | None:
    if potential.view is not identity or not isinstance(potential.energy, Energy) or potential.energy.knows_step:
        return None
    return potential.energy.formula(potential.features)
