"""The gradient of the last k steps."""

from __future__ import annotations

from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.checkpointed import Checkpointed
from spen.gradients.replay import Replayed, replay, replayed
from spen.protocols import GradientStrategy


class Truncated(GradientStrategy):
    """Back-propagate through the last ``steps`` steps of each example, as if it had started there.

    Losses on earlier iterates send nothing; Init gets a gradient only from examples that took no more than
    ``steps`` steps. ``through`` says how the steps that count are differentiated. Biased, cheap; with one step,
    it is how energy-based transformers are often trained.
    """

    def __init__(self, steps: int, through: Replayed | None = None) -> None:
        if steps < 1:
            raise ValueError(f"Truncated needs at least one step to differentiate, not {steps}")
        self.steps = steps
        self.through = replayed(Checkpointed() if through is None else through, "Truncated")

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        return replay(
            descend,
            potential,
            start,
            self.through.product,
            last=self.steps,
            twice=self.through.exact,
            forward=self.through.forward,
        )

    def __repr__(self) -> str:
        return f"Truncated({self.steps}, through={self.through})"
