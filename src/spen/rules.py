"""Step rules: GradientDescent, Momentum, LBFGS, and one that is itself learned.

Rates are fixed or learned, one for all steps or one per step.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spen.parameters import Positive
from spen.protocols import State, StepRule
from spen.tensors import flat

__all__ = ["LBFGS", "Extended", "GradientDescent", "LearnedOptimizer", "Momentum", "StepRule"]

Rate = float | Sequence[float] | Tensor


class GradientDescent(StepRule):
    """y_{t+1} = y_t − η_t g_t (Eq. 5).

    ``rate`` is one number, or one per step. ``learn_rates=True`` makes them parameters, one per step, positive
    by construction. ``backtracks`` makes a descent that never gets worse: a step that would raise the energy of an
    example is halved up to so many times, and else not taken (0: accept if lower).
    """

    def __init__(
        self, steps: int, rate: Rate = 0.1, *, learn_rates: bool = False, backtracks: int | None = None
    ) -> None:
        super().__init__()
        self.steps = _checked_steps(steps)
        self.backtracks = _checked_backtracks(backtracks)
        self.rates = _rates(steps, rate, learn_rates)

    def begin(self, z: Tensor) -> State:
        return (torch.zeros_like(z),)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        return self.rates()[t] * gradient, (gradient,)

    def recall(self, before: State, after: State) -> Tensor:
        return after[0]


class Momentum(StepRule):
    """h_{t+1} = γ h_t + (1 − d) g_t;  y_{t+1} = y_t − η_t h_{t+1}. ``decay`` is γ.

    ``dampening`` is d, as in ``torch.optim.SGD``: where it is not 0, h_1 = g_0. With d = γ the velocity is a mean of
    gradients; the authors' public Lua code descends so. ``backtracks`` is as in ``GradientDescent``.
    """

    def __init__(
        self,
        steps: int,
        rate: Rate = 0.1,
        *,
        decay: float = 0.25,
        dampening: float = 0.0,
        learn_rates: bool = False,
        backtracks: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"the momentum's decay must lie in [0, 1), not {decay}")
        if not 0 <= dampening < 1:
            raise ValueError(f"the momentum's dampening must lie in [0, 1), not {dampening}")
        self.steps = _checked_steps(steps)
        self.backtracks = _checked_backtracks(backtracks)
        self.decay = decay
        self.dampening = dampening
        self.rates = _rates(steps, rate, learn_rates)

    def begin(self, z: Tensor) -> State:
        return () if self.dampening else (torch.zeros_like(z),)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        velocity = self.decay * state[0] + (1 - self.dampening) * gradient if state else gradient
        return self.rates()[t] * velocity, (velocity,)

    def recall(self, before: State, after: State) -> Tensor:
        return (after[0] - self.decay * before[0]) / (1 - self.dampening) if before else after[0]

    def extra_repr(self) -> str:
        return f"decay={self.decay}" + (f", dampening={self.dampening}" if self.dampening else "")


class LBFGS(StepRule):
    """y_{t+1} = y_t − η_t H_t g_t, H_t from the last ``memory`` differences s = Δz, r = Δg (two-loop recursion).

    Unrolled: no line search, every operation differentiable, every example its own history. A pair enters an
    example's history only where its curvature is positive, ⟨s, r⟩ > 1e-10 ‖s‖‖r‖, and no number underflows. The first
    step, which has no history, is a plain gradient step of ``first_rate``·g.
    """

    def __init__(
        self, steps: int, rate: Rate = 1.0, *, memory: int = 5, first_rate: float = 0.1, learn_rates: bool = False
    ) -> None:
        super().__init__()
        if memory < 1:
            raise ValueError(f"L-BFGS needs a memory of at least one pair, not {memory}")
        if not first_rate > 0:
            raise ValueError(f"first_rate must be positive, not {first_rate}")
        self.steps = _checked_steps(steps)
        self.memory = memory
        self.first_rate = first_rate
        self.rates = _rates(steps, rate, learn_rates)

    def begin(self, z: Tensor) -> State:
        return ()

    # The state is the last memory + 1 pairs (z, g), oldest first, from which the differences are computed. States of
    # consecutive steps share their tensors, so a step adds one gradient; its iterate is stored in any case.
    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        after = (*state, z, gradient)[-2 * (self.memory + 1) :]
        points, gradients = after[0::2], after[1::2]
        pairs = [self._pair(points[i + 1] - points[i], gradients[i + 1] - gradients[i]) for i in range(len(points) - 1)]
        direction = flat(gradient)
        alphas = []
        for s, r, inverse, _ in reversed(pairs):
            alpha = inverse * _dot(s, direction)
            alphas.append(alpha)
            direction = direction - alpha * r
        direction = direction * self._first_scale(pairs, direction)
        for (s, r, inverse, _), alpha in zip(pairs, reversed(alphas), strict=True):
            direction = direction + s * (alpha - inverse * _dot(r, direction))
        return self.rates()[t] * direction.view_as(gradient), after

    def recall(self, before: State, after: State) -> Tensor:
        return after[-1]

    def _pair(self, step: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s, r = flat(step), flat(change)
        curvature = _dot(s, r)
        squared = _dot(r, r).detach()
        # 1/⟨s, r⟩² and 1/⟨r, r⟩², in the derivative, would overflow below the root of the smallest number.
        floor = torch.finfo(s.dtype).tiny ** 0.5
        good = curvature.detach() > 1e-10 * (_dot(s, s).detach() * squared).sqrt()
        good = good & (curvature.detach() > floor) & (squared > floor)
        inverse = torch.where(good, 1 / torch.where(good, curvature, torch.ones_like(curvature)), 0.0)
        return s, r, inverse, good

    def _first_scale(self, pairs: list[tuple[Tensor, Tensor, Tensor, Tensor]], direction: Tensor) -> Tensor:
        # H_0 = ⟨s, r⟩/⟨r, r⟩ of the newest usable pair of each example; the given first rate where none is usable.
        scale = direction.new_full((direction.shape[0], 1), self.first_rate)
        for s, r, _, good in pairs:
            squared = _dot(r, r)
            ratio = _dot(s, r) / torch.where(good, squared, torch.ones_like(squared))
            scale = torch.where(good, ratio, scale)
        return scale

    def extra_repr(self) -> str:
        return f"memory={self.memory}, first_rate={self.first_rate}"


def _dot(a: Tensor, b: Tensor) -> Tensor:  # (B, n), (B, n) -> (B, 1)
    return (a * b).sum(1, keepdim=True)


class LearnedOptimizer(StepRule):
    """y_{t+1} = y_t − η_t (g_t + m(g_t, h_t)): a small recurrent network decides the step (Andrychowicz et al. 2016).

    A GRU shared by all coordinates: h_{t+1} = GRU(asinh(g_t/s), h_t), direction η_t (g_t + s·⟨w, h_{t+1}⟩).

    Every coordinate of y has ``width`` numbers of memory and the same weights, so the rule serves outputs of any
    shape. The network sees the gradient in units of ``scale`` s, through asinh, which keeps small and large ones
    apart. w starts at 0: before learning this is gradient descent of ``rate``. As the paper says of such rules
    (Sec. 4), a step need not lower the energy.
    """

    def __init__(self, steps: int, rate: float = 0.1, *, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        if width < 1 or not scale > 0:
            raise ValueError(f"the optimiser needs width ≥ 1 and scale > 0, not {width} and {scale}")
        self.steps = _checked_steps(steps)
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


class Extended(StepRule):
    """``steps`` steps of another rule: further steps than its own repeat the last one with its rate."""

    def __init__(self, rule: StepRule, steps: int, *, backtracks: int | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.steps = _checked_steps(steps)
        self.backtracks = rule.backtracks if backtracks is None else _checked_backtracks(backtracks)

    def begin(self, z: Tensor) -> State:
        return self.rule.begin(z)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        return self.rule.update(min(t, self.rule.steps - 1), z, gradient, state)

    def recall(self, before: State, after: State) -> Tensor:
        return self.rule.recall(before, after)

    def energy_step(self, t: int) -> int:
        return self.rule.energy_step(min(t, self.rule.steps - 1))

    def extra_repr(self) -> str:
        return f"steps={self.steps}"


def _checked_backtracks(backtracks: int | None) -> int | None:
    if backtracks is not None and (not isinstance(backtracks, int) or backtracks < 0):
        raise ValueError(f"backtracks is how often a step is halved, 0 or more, or None; not {backtracks}")
    return backtracks


def _checked_steps(steps: int) -> int:
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or operator.index(steps) < 1:
        raise ValueError(f"a descent takes a whole number of steps, at least one, not {steps}")
    return operator.index(steps)


def _rates(steps: int, rate: Rate, learned: bool) -> Positive:
    if isinstance(rate, Tensor) and rate.requires_grad:
        raise ValueError(
            "the rate is a tensor that requires a gradient, of which a rule takes the value alone: give numbers and "
            "learn_rates=True, or rate.detach() for fixed ones"
        )
    values = torch.as_tensor(rate, dtype=torch.get_default_dtype())
    if values.dim() > 1 or (values.dim() == 1 and values.numel() != steps):
        raise ValueError(f"rate must be one number or {steps}, one per step; it has shape {tuple(values.shape)}")
    return Positive(values.expand(steps), learned=learned, name="a rate")
