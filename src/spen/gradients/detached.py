"""The gradient of every step by itself."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.checkpointed import Checkpointed
from spen.gradients.replay import Replayed, replay, replayed
from spen.protocols import GradientStrategy


class Detached(GradientStrategy):
    """Back-propagate every iterate through the one step that led to it, as if the step had started there.

    For a loss on every iterate, as energy-based transformers are trained: y_t = step(y_{t−1}) with y_{t−1} and the
    rule's state cut off. No product of T Jacobians can explode or vanish. Init gets a gradient from the first step
    alone. ``through`` says how a step is differentiated.
    """

    def __init__(self, through: Replayed | None = None) -> None:
        self.through = replayed(Checkpointed() if through is None else through, "Detached")

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        through = self.through
        return replay(
            descend,
            potential,
            start,
            through.product,
            detached=True,
            twice=through.exact,
            forward=through.forward,
        )

    def __repr__(self) -> str:
        return f"Detached(through={self.through})"
