"""H v and ∂_θ⟨v, ∇E⟩ by double backprop, and a clear word for energies that cannot do it."""

from __future__ import annotations

import re
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.loop import Descend
from spen.descent.potential import Potential, ScoreFunction, input_gradient
from spen.descent.repeatable import drawing_from, generators

Products = tuple[Tensor | None, list[Tensor | None]]
"""(H v at the point, and ∂⟨v, ∇E⟩ for each feature tensor, then each parameter); None means zero."""


class NotTwiceDifferentiable(RuntimeError):
    """The energy has no second derivative that this strategy could use."""


# Energies whose whole graph has been searched, those whose closed-form terms have, and those whose second derivative
# has been tried.
_searched: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_searched_in_part: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_tried: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def exact_product(
    potential: Potential, point: Tensor, direction: Tensor, part: ScoreFunction | None = None
) -> Products:
    """∂⟨v, ∇E⟩ by differentiating the gradient's own graph. ``part`` restricts it to some terms of the energy."""
    targets: list[Tensor] = [*potential.feature_tensors(), *potential.parameters()]
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        energies = potential(leaf, part)
        searched = _searched if part is None else _searched_in_part
        if potential.energy not in searched:
            if names := once_differentiable_operations(energies):
                raise _only_once(potential, " or ".join(names))
            searched.add(potential.energy)
        gradient = input_gradient(energies, leaf, create_graph=True)
    if not gradient.requires_grad:
        return None, [None] * len(targets)
    try:
        at_point, *rest = torch.autograd.grad(gradient, [leaf, *targets], direction, allow_unused=True)
    except RuntimeError as error:
        raise explained(error, potential, point) from error
    return at_point, list(rest)


def require_second_derivative(potential: Potential, descend: Descend, start: Tensor) -> None:
    """Try the second derivative on one example, once for each energy, while the error can still be explained."""
    if potential.energy in _tried:
        return
    rows = torch.zeros(1, dtype=torch.long, device=start.device)
    with torch.no_grad():
        z = descend.domain.enter(start.detach()[:1])
        point = descend.point(z, descend.domain.output(z))
    with drawing_from(generators(point.device), point.device):
        exact_product(potential.detached(rows), point, torch.ones_like(point))
    _tried.add(potential.energy)


def explained(error: RuntimeError, potential: Potential, point: Tensor) -> RuntimeError:
    """The same failure in a sentence that names the operation, if it is one of the known kinds."""
    text = str(error)
    if missing := re.search(r"derivative for (?:aten::)?(\w+) is not implemented", text):
        return _only_once(potential, missing[1])
    if "once_differentiable" in text or "does not currently support double backward" in text:
        with torch.enable_grad():
            energies = potential(point.detach().requires_grad_())
        return _only_once(potential, " or ".join(once_differentiable_operations(energies)) or "a custom Function")
    return error


def _only_once(potential: Potential, operation: str) -> NotTwiceDifferentiable:
    return NotTwiceDifferentiable(
        f"the energy {type(potential.energy).__name__} has no second derivative: {operation} can be differentiated "
        "only once. Use gradient=FiniteDifference(), which needs first derivatives alone"
    )


def once_differentiable_operations(energies: Tensor) -> list[str]:
    """The names of the Python autograd Functions on the graph whose backward has no derivative of its own.

    Autograd raises for these only if the cotangent that reaches them needs a gradient. Where it is a constant, as
    right below a sum, they drop out of the second derivative in silence: the graph has to be searched.
    """
    names: set[str] = set()
    seen: set[object] = set()
    stack: list[Any] = [energies.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            name = type(node).__name__.removesuffix("Backward")
            owner = getattr(node, "_forward_cls", None)
            code = getattr(getattr(owner, "backward", None), "__code__", None)
            if name == "CompiledFunction":
                names.add("torch.compile")
            elif code is not None and code.co_qualname.startswith("once_differentiable"):
                names.add(name)
        stack.extend(parent for parent, _ in node.next_functions)
    return sorted(names)


def added(first: Products, second: Products) -> Products:
    """The sum of two products."""
    return plus(first[0], second[0]), [plus(a, b) for a, b in zip(first[1], second[1], strict=True)]


def plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a + b, where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def nothing(count: int) -> Products:
    """The product of a linear energy."""
    return None, [None] * count
