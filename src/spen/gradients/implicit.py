"""dŷ/dθ = −H⁻¹ ∂_θ∇E at a minimiser: the implicit function theorem (Sec. 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential, identity
from spen.energies.compose import knows_step
from spen.gradients.replay import Replayed, autocast_of, refuse_replica, through_or_default
from spen.gradients.snapshots import Held, generators, same, unhooked
from spen.protocols import Domain, GradientStrategy
from spen.tensors import flat


class Implicit(GradientStrategy):
    """Solve H u = dℓ/dŷ by conjugate gradients at the answer, inside the face of the domain it lies on.

    The gradient does not depend on how the minimiser was found, so it knows nothing of earlier iterates or rates,
    and Init's is exactly zero. It is right only at a minimum: an unconverged descent is refused. ``iterations``
    and ``tolerance`` (relative residual; None: 1e-8, or 64 units of the last place) bound the solver; ``through``
    supplies its Hessian-vector products.
    """

    def __init__(self, iterations: int = 200, tolerance: float | None = None, through: Replayed | None = None) -> None:
        if iterations < 1 or (tolerance is not None and not tolerance > 0):
            raise ValueError(f"Implicit needs iterations ≥ 1 and tolerance > 0, not {iterations} and {tolerance}")
        self.iterations = iterations
        self.tolerance = tolerance
        self.through = through_or_default(through, "Implicit")

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        if descend.stop is None:
            raise ValueError(
                "Implicit differentiates a minimiser, so the descent must converge: give the Minimizer a stop, "
                "for example stop=RelativeChange(1e-6)"
            )
        if any(p.requires_grad for p in descend.rule.parameters()):
            raise ValueError(
                "Implicit sends no gradient to learned rates: the minimiser does not depend on them. "
                "Use learn_rates=False, or a strategy that differentiates the steps, such as Checkpointed()"
            )
        if knows_step(potential.energy):
            raise ValueError(
                f"Implicit differentiates a minimiser, and the energy {type(potential.energy).__name__} knows the "
                "step: it is another function at every step. Use a strategy that differentiates the steps, such as "
                "Checkpointed()"
            )
        if descend.keep_gradients:
            raise ValueError("Implicit cannot differentiate the gradients of earlier steps: use keep_gradients=False")
        refuse_replica(potential)
        with torch.no_grad():
            path = descend(potential.detached(), start.detach())
        missing = int((~path.converged).sum())
        if missing:
            lost = int((~flat(path.outputs[-1]).isfinite().all(1)).sum())
            if lost:
                raise ValueError(
                    f"Implicit needs a minimiser, but {lost} of {len(path.converged)} examples ended in numbers that "
                    "are not finite: lower the rates, or the learning rate"
                )
            raise ValueError(
                f"Implicit needs a minimiser, but {missing} of {len(path.converged)} examples had not converged after "
                f"{descend.rule.steps} steps: allow more steps, or use a strategy that differentiates the steps, "
                "such as Checkpointed()"
            )
        plain = Potential.of(potential.energy, potential.features, identity)
        cut, held = plain.detached(), Held(potential.energy, descend.domain)
        before = generators(start.device)
        cut.gradient(path.outputs[-1], self.through.inspect)
        if not same(before, generators(start.device)):
            name = type(potential.energy).__name__
            raise ValueError(
                f"Implicit needs a minimiser, but the energy {name} draws random numbers and is another "
                "function at every evaluation. Use a strategy that differentiates the steps, such as Checkpointed()"
            )
        held.settle()
        tape = _Tape(descend.domain, cut, self, held, autocast_of(start))
        path.outputs = list(_Minimiser.apply(tape, *path.outputs, *plain.feature_tensors(), *plain.parameters()))
        return path


@dataclass
class _Tape:
    domain: Domain
    potential: Potential
    strategy: Implicit
    held: Held
    autocast: Callable[[], torch.autocast]
    outputs: int = 0


class _Minimiser(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: _Tape, *tensors: Tensor) -> tuple[Tensor, ...]:
        learns = len(tape.potential.feature_tensors()) + len(tape.potential.parameters())
        tape.outputs = len(tensors) - learns
        ctx.tape = tape
        ctx.save_for_backward(*tensors[tape.outputs - 1 :])  # the inputs too: autograd raises if they have been changed
        ctx.set_materialize_grads(False)
        return tuple(y.view_as(y) for y in tensors[: tape.outputs])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tape: _Tape = ctx.tape
        if any(bar is not None for bar in cotangents[:-1]):
            raise RuntimeError(
                "Implicit can serve a loss on the last iterate alone, but this loss looks at earlier ones: "
                'use EndToEnd(loss, weights="last"), or a strategy that differentiates the steps'
            )
        nothing = [None] * tape.outputs
        if cotangents[-1] is None:
            return (None, *nothing, *[None] * (len(ctx.needs_input_grad) - 1 - tape.outputs))
        answer = ctx.saved_tensors[0].detach()
        with tape.held.put_back(), tape.autocast(), unhooked(tape.potential.parameters()):
            solution = _solve(tape, answer, cotangents[-1])
            _require_minimiser(tape, answer, cotangents[-1], solution)
            _, bars = tape.strategy.through.product(tape.potential, answer, solution)
        return (None, *nothing, *(None if bar is None else -bar for bar in bars))


def _require_minimiser(tape: _Tape, answer: Tensor, cotangent: Tensor, solution: Tensor) -> None:
    """Refuse an answer that is far from the minimiser: small steps converge anywhere.

    With u = H⁻¹v, the way that is left changes the loss by ⟨u, ∇E⟩, to first order. Beside ‖v‖‖ŷ‖ it must be small.
    """
    slope, _ = tape.potential.gradient(answer)
    left = flat(solution * slope).sum(1).abs()
    least = torch.finfo(answer.dtype).tiny ** 0.5  # an answer of zero is a minimiser, too
    whole = flat(cotangent).norm(dim=1) * flat(answer).norm(dim=1).clamp_min(least)
    if bool((left > _LEFT * whole).any()):
        raise RuntimeError(
            "Implicit needs a minimiser, but the descent stopped far from it, since its steps were small: the rest of "
            f"the way changes y by more than {_LEFT:.0%}. Use larger rates, a smaller tolerance of the stop, or a "
            "strategy that differentiates the steps, such as Checkpointed()"
        )


_LEFT = 0.05


def _solve(tape: _Tape, answer: Tensor, cotangent: Tensor) -> Tensor:
    """u = J (Jᵀ H J)⁻¹ Jᵀ v, by conjugate gradients on each example at once; J spans the directions y may move in."""
    domain, strategy = tape.domain, tape.strategy

    def curvature(e: Tensor) -> Tensor:
        at_point, _ = strategy.through.product(tape.potential, answer, domain.lift(answer, e))
        return torch.zeros_like(e) if at_point is None else domain.lower(answer, at_point)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return flat(a * b).sum(1).view(-1, *[1] * (a.dim() - 1))

    residual = domain.lower(answer, cotangent)
    tolerance = max(1e-8, 64 * torch.finfo(answer.dtype).eps) if strategy.tolerance is None else strategy.tolerance
    goal = tolerance**2 * dot(residual, residual)
    solution, direction, squared = torch.zeros_like(residual), residual, dot(residual, residual)
    for _ in range(strategy.iterations):
        open_rows = squared > goal
        if not bool(open_rows.any()):
            break
        image = curvature(direction)
        bend = dot(direction, image)
        if bool((open_rows & (bend <= 0)).any()):
            raise RuntimeError(
                "Implicit found a direction in which the energy does not curve upwards: the answer is not an "
                "isolated minimum. Add strong convexity (EntropySmoothed, a quadratic term), or differentiate the steps"
            )
        rate = torch.where(open_rows, squared / torch.where(open_rows, bend, 1.0), 0.0)
        solution = solution + rate * direction
        residual = residual - rate * image
        previous, squared = squared, torch.where(open_rows, dot(residual, residual), squared)
        direction = residual + torch.where(open_rows, squared / previous.clamp_min(1e-300), 0.0) * direction
    if bool((squared > goal).any()):
        raise RuntimeError(
            f"Implicit's conjugate gradients did not reach a relative residual of {tolerance} in "
            f"{strategy.iterations} iterations: allow more of them or a larger tolerance"
        )
    # A cotangent that is not finite leaves its example at once: the gradient is not finite either.
    return domain.lift(answer, torch.where(squared.isfinite(), solution, torch.nan))
