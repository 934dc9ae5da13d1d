"""The contracts of domains and step rules."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from spen.protocols import Domain, StepRule
from spen.tensors import as_rows
from spen.testing.report import require


def check_domain(domain: Domain, shape: tuple[int, ...] = (3, 4, 5)) -> None:
    """Raise ContractError unless ``domain`` keeps its contract for starts of this shape (batch first).

    A step of zero changes nothing, outputs are finite for coordinates of ±1e4, examples are independent, ``lower`` is
    the transpose of ``lift``. ``domain.contains`` holds after ``enter``, after steps of any length, and after a small
    move along a lifted direction.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    z = domain.enter(start)
    y = domain.output(z)
    require(y.shape[0] == shape[0], f"{domain} returned {y.shape[0]} outputs for {shape[0]} starts")
    _require_inside(domain, y, "at the start")
    still = domain.output(domain.step(z, torch.zeros_like(z)))
    require(_near(still, y, 1e-12), f"{domain} moves y although the direction is zero")
    direction = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    moved = domain.output(domain.step(z, 0.1 * direction))
    require(not torch.equal(moved, y), f"{domain} ignores the direction of a step")
    again = domain.output(domain.step(domain.step(z, 0.1 * direction), torch.zeros_like(z)))
    require(_near(again, moved, 1e-12), f"{domain} leaves y outside: a step of length zero moves it back")
    _check_extremes(domain, start)
    _check_inside(domain, start, direction)
    alone = torch.cat([domain.output(domain.step(domain.enter(s), 0.1 * d)) for s, d in _rows(start, direction)])
    require(_near(alone, moved, 1e-12), f"{domain} mixes the examples of a batch")
    _check_tangents(domain, y, generator)


def check_rule(rule: StepRule, shape: tuple[int, ...] = (3, 5)) -> None:
    """Raise ContractError unless ``rule`` keeps its contract.

    Gradients can be recalled from consecutive states, examples are independent, the caller's tensors are not modified,
    and gradients flow back through every step to the first. A gradient of zero, for one example or all of them, gives
    finite steps and derivatives.
    """
    rule = copy.deepcopy(rule).double()
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(shape, generator=generator, dtype=torch.float64)
    kept, state = z.clone(), rule.begin(z)
    first = z.clone().requires_grad_()
    point, moving = first, rule.begin(first)
    for t in range(rule.steps):
        g = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.1 * z
        g_kept = g.clone()
        direction, after = rule.update(t, z, g, state)
        require(torch.equal(g, g_kept), f"{type(rule).__name__} changes the gradient it was given")
        require(direction.shape == g.shape, f"{type(rule).__name__} returned a direction of {tuple(direction.shape)}")
        require(
            _near(rule.recall(state, after), g, 1e-9),
            f"{type(rule).__name__}.recall does not return the gradient that led from one state to the next",
        )
        rows = torch.cat(
            [rule.update(t, z[i : i + 1], g[i : i + 1], tuple(s[i : i + 1] for s in state))[0] for i in range(shape[0])]
        )
        require(_near(rows, direction, 1e-9), f"{type(rule).__name__} mixes the examples of a batch")
        step, moving = rule.update(t, point, g + 0.1 * point, moving)
        point = point - step
        z, state = z - direction.detach(), tuple(s.detach() for s in after)
    require(torch.equal(kept, first.detach()), f"{type(rule).__name__} changes the point it was given")
    (bar,) = torch.autograd.grad(point.sum(), first, allow_unused=True)
    require(
        bar is not None and bool(bar.isfinite().all() and bar.abs().sum() > 0),
        f"{type(rule).__name__} sends no finite gradient back to the first point",
    )
    for still in (torch.ones(shape[0], dtype=torch.bool), torch.arange(shape[0]) == 0):
        _check_zero_gradients(rule, z, still)


def _check_zero_gradients(rule: StepRule, z: Tensor, still: Tensor) -> None:
    """Take all steps with a gradient of zero for the examples that are ``still``."""
    name = f"{type(rule).__name__} at a gradient of zero"
    gradient = torch.where(as_rows(still, z), 0.0, torch.ones_like(z))
    leaves = [z.clone().requires_grad_()]
    point, state = leaves[0], rule.begin(leaves[0])
    for t in range(rule.steps):
        leaves.append(gradient.clone().requires_grad_())
        direction, state = rule.update(t, point, leaves[-1], state)
        require(bool(direction.isfinite().all()), f"the step of {name} is not finite (step {t})")
        point = point - direction
    learned = [p for p in rule.parameters() if p.requires_grad]
    bars = torch.autograd.grad(point.square().sum(), [*leaves, *learned], allow_unused=True)
    require(
        all(bool(bar.isfinite().all()) for bar in bars if bar is not None),
        f"the derivative of {name} is not finite: a norm or square root needs a small number added under the root",
    )


def _check_extremes(domain: Domain, start: Tensor) -> None:
    extreme = torch.where(start > 0, 1e4, -1e4)
    for dtype in (torch.float32, torch.float64):
        leaf = extreme.to(dtype).requires_grad_()
        z = domain.step(domain.enter(leaf), 0.1 * torch.ones_like(leaf))
        y = domain.output(z)
        require(bool(y.isfinite().all()), f"{domain} is not finite for coordinates of ±1e4 in {dtype}")
        (bar,) = torch.autograd.grad((y * torch.arange(y.numel(), dtype=dtype).view_as(y)).sum(), leaf)
        require(
            bool(bar.isfinite().all()), f"the gradient of {domain} is not finite for coordinates of ±1e4 in {dtype}"
        )


def _check_inside(domain: Domain, start: Tensor, direction: Tensor) -> None:
    """Short and long steps, from near and far starts, and small moves along lifted directions."""
    for dtype in (torch.float32, torch.float64):
        for reach in (1.0, 1e4):
            z = domain.enter((reach * start).to(dtype))
            _require_inside(domain, domain.output(z), f"where a start of size {reach:g} enters ({dtype})")
            for length in (0.1, 10.0, 1e4):
                for sign in (1, -1):
                    z = domain.step(z, (sign * length * direction).to(dtype))
                    _require_inside(domain, domain.output(z), f"after a step of length {length:g} ({dtype})")
    # Inside, and on faces: a coordinate that is tiny but not zero would be left by any move of fixed length.
    z, far = domain.enter(start), 1e4 * direction.sign()
    for coordinates in (z, domain.enter(far), domain.step(z, far)):
        y = domain.output(coordinates)
        for sign in (1, -1):
            moved = y + sign * 1e-6 * domain.lift(y, direction)
            _require_inside(domain, moved, "after a small move along a lifted direction")


def _require_inside(domain: Domain, y: Tensor, where: str) -> None:
    inside = domain.contains(y)
    require(
        inside.shape == (y.shape[0],) and inside.dtype == torch.bool,
        f"{domain}.contains must return one truth value per example, shape ({y.shape[0]},) of torch.bool",
    )
    require(bool(inside.all()), f"{domain} leaves its set {where}: contains(y) is False")


def _check_tangents(domain: Domain, y: Tensor, generator: torch.Generator) -> None:
    e = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    v = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    lifted, lowered = domain.lift(y, e), domain.lower(y, v)
    there, back = float((lifted * v).sum()), float((e * lowered).sum())
    require(
        abs(there - back) <= 1e-9 * max(1.0, abs(there)),
        f"lower is not the transpose of lift in {domain}: ⟨lift(e), v⟩ = {there:.6g}, ⟨e, lower(v)⟩ = {back:.6g}",
    )


def _rows(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [tuple(t[i : i + 1] for t in tensors) for i in range(tensors[0].shape[0])]


def _near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))
