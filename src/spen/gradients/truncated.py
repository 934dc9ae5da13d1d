"""Biased gradients: of the last k steps, or of every step by itself."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.replay import Replayed, replay, through_or_default
from spen.protocols import GradientStrategy


class Truncated(GradientStrategy):
    """Back-propagate through the last ``steps`` steps of each example, as if it had started there.

    Losses on earlier iterates send nothing; Init gets a gradient only from examples that took no more than
    ``steps`` steps. ``through`` differentiates these steps: ``Checkpointed()``, ``FiniteDifference()`` or
    ``ForwardOverReverse()``. Biased, cheap; with one step, it is how energy-based transformers are often trained.
    """

    def __init__(self, steps: int, through: Replayed | None = None) -> None:
        if steps < 1:
            raise ValueError(f"Truncated needs at least one step to differentiate, not {steps}")
        self.steps = steps
        self.through = through_or_default(through, "Truncated")

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        return replay(descend, potential, start, self.through, last=self.steps)


class Detached(GradientStrategy):
    """Back-propagate every iterate through the one step that led to it, as if the descent had started there.

    For a loss on every iterate, as energy-based transformers are trained: y_t = step(y_{t−1}) with y_{t−1} and the
    rule's state detached. No product of T Jacobians can explode or vanish. Init gets a gradient from the first step
    alone. ``through`` differentiates the step, as for ``Truncated``.
    """

    def __init__(self, through: Replayed | None = None) -> None:
        self.through = through_or_default(through, "Detached")

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        return replay(descend, potential, start, self.through, detached=True)
