"""y_{t+1} = y_t − η_t (g_t + m(g_t, h_t)): a small recurrent network decides the step (Andrychowicz et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spen.positive import Positive
from spen.protocols import State, StepRule


class LearnedOptimizer(StepRule):
    """A GRU shared by all coordinates: h_{t+1} = GRU(asinh(g_t/s), h_t), direction η_t (g_t + s·⟨w, h_{t+1}⟩).

    Every coordinate of y has ``width`` numbers of memory and the same weights, so the rule serves outputs of any
    shape. The network sees the gradient in units of ``scale`` s, through asinh, which keeps small and large ones
    apart. w starts at 0: before learning this is gradient descent of ``rate``. As the paper says of such rules
    (Sec. 4), what they do with an energy is theirs to decide: nothing makes a step lower it.
    """

    def __init__(self, steps: int, rate: float = 0.1, *, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"a descent takes at least one step, not {steps}")
        if width < 1 or not scale > 0:
            raise ValueError(f"the optimiser needs width ≥ 1 and scale > 0, not {width} and {scale}")
        self.steps = steps
        self.width = width
        self.scale = scale
        self.rates = Positive(torch.full((steps,), float(rate)), learned=True, name="a rate")
        self.cell = nn.GRUCell(1, width)
        self.readout = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.readout.weight)

    # The state is (h, g): the memory of every coordinate, and the gradient for ``recall``.
    def begin(self, z: Tensor) -> State:
        return (z.new_zeros(*z.shape, self.width), torch.zeros_like(z))

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.asinh(gradient / self.scale).reshape(-1, 1)
        memory = self.cell(seen, state[0].reshape(-1, self.width))
        advice = self.scale * self.readout(memory).view_as(gradient)
        return self.rates()[t] * (gradient + advice), (memory.view_as(state[0]), gradient)

    def recall(self, before: State, after: State) -> Tensor:
        return after[1]

    def extra_repr(self) -> str:
        return f"steps={self.steps}, width={self.width}, scale={self.scale}"
