"""The contract of an energy: one number per example, each example alone, two derivatives in y."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.potential import Potential, identity
from spen.gradients.second_order import NotTwiceDifferentiable, exact_product
from spen.tensors import flat, tensors_of, tree_map
from spen.testing.report import ContractError, require

# Autograd nodes of operations whose derivative jumps, and the names of the operations.
_CORNERS = {
    "ReluBackward": "ReLU",
    "LeakyReluBackward": "LeakyReLU",
    "PreluKernelBackward": "PReLU",
    "RreluWithNoiseBackward": "RReLU",
    "HardtanhBackward": "Hardtanh or ReLU6",
    "HardswishBackward": "Hardswish",
    "HardsigmoidBackward": "Hardsigmoid",
    "ThresholdBackward": "Threshold",
    "SoftshrinkBackward": "Softshrink",
    "AbsBackward": "abs",
    "SignBackward": "sign",
    "MaxBackward": "max",
    "AmaxBackward": "max",
    "MinBackward": "min",
    "AminBackward": "min",
    "MaximumBackward": "maximum",
    "MinimumBackward": "minimum",
    "MaxPool2DWithIndicesBackward": "max pooling",
    "MaxPool3DWithIndicesBackward": "max pooling",
    "AdaptiveMaxPool2DBackward": "adaptive max pooling",
    "AdaptiveMaxPool3DBackward": "adaptive max pooling",
    "RoundBackward": "round",
    "FloorBackward": "floor",
    "CeilBackward": "ceil",
    "TruncBackward": "trunc",
}


def check_energy(
    energy: nn.Module, y: Tensor, features: Any = None, *, second_derivative: bool = True, tolerance: float = 1e-4
) -> None:
    """Raise ContractError, with the reason in a sentence, unless ``energy`` keeps its contract.

    ``y`` (B, …) and ``features`` are an example batch with B ≥ 2, in double precision for sharp tests.
    ``second_derivative=False`` allows an energy that can be differentiated only once, for ``FiniteDifference``.
    """
    require(y.shape[0] >= 2, "check_energy needs a batch of at least two examples, to see whether they are independent")
    y = y.detach().clone()
    potential = Potential.of(energy, tree_map(torch.clone, features), identity).detached()
    _check_values(potential, y)
    _check_batch(potential, y, tolerance)
    _check_first_derivative(potential, y, tolerance)
    if second_derivative:
        _check_corners(potential, y)
        _check_second_derivative(potential, y, tolerance)


def _check_values(potential: Potential, y: Tensor) -> None:
    given = [y, *tensors_of(potential.features)]
    before = [tensor._version for tensor in given]
    with torch.no_grad():
        try:
            value = potential(y)
        except (TypeError, ValueError) as error:
            raise ContractError(str(error)) from None
        require(before == [tensor._version for tensor in given], "the energy changes y or its features in place")
        require(bool(value.isfinite().all()), "the energy is not finite at the given y")
        require(
            bool(torch.equal(value, potential(y))),
            "the energy returns different values for the same y: put dropout and other noise into F, not into E",
        )


def _check_batch(potential: Potential, y: Tensor, tolerance: float) -> None:
    with torch.no_grad():
        together = potential(y)
        for i in range(min(y.shape[0], 4)):
            row = torch.tensor([i], device=y.device)
            try:
                alone = potential.detached(row)(y[i : i + 1])
            except (ValueError, RuntimeError) as error:
                raise ContractError(f"the energy cannot score an example alone, in a batch of one: {error}") from None
            require(
                bool(torch.allclose(alone[0], together[i], rtol=tolerance, atol=tolerance)),
                f"the energy of example {i} changes with its neighbours in the batch: "
                f"{float(together[i]):.6g} together, {float(alone[0]):.6g} alone. An energy must score each example "
                "alone (batch normalisation and sums over the batch mix them)",
            )


def _check_first_derivative(potential: Potential, y: Tensor, tolerance: float) -> None:
    try:
        gradient, _ = potential.gradient(y)
    except ValueError as error:
        raise ContractError(str(error)) from None
    require(bool(gradient.isfinite().all()), "the gradient dE/dy is not finite at the given y")
    direction = _direction(y)
    reach = 1e-5 if y.dtype == torch.float64 else 3e-3
    with torch.no_grad():
        slope = (potential(y + reach * direction) - potential(y - reach * direction)) / (2 * reach)
    claimed = flat(gradient * direction).sum(1)
    require(
        _close(claimed, slope, _loosened(tolerance, y)),
        f"dE/dy along a random direction is {claimed.tolist()[:3]} by autograd but {slope.tolist()[:3]} by "
        "differences: the backward pass of the energy is wrong, or it bends too sharply at the given y",
    )


def _check_corners(potential: Potential, y: Tensor) -> None:
    leaf = y.clone().requires_grad_()
    with torch.enable_grad():
        names = _corner_operations(potential(leaf), leaf)
    require(
        not names,
        f"the energy uses {', '.join(names)} on the way from y, which has no second derivative: the descent could "
        "not be learned through it. Use spen.energies.Softplus (or SoftAbs) instead",
    )


def _check_second_derivative(potential: Potential, y: Tensor, tolerance: float) -> None:
    direction = _direction(y)
    try:
        product, _ = exact_product(potential, y, direction, search=True)
    except NotTwiceDifferentiable as error:
        raise ContractError(str(error)) from None
    reach = 1e-5 if y.dtype == torch.float64 else 1e-2
    plus, _ = potential.gradient(y + reach * direction)
    minus, _ = potential.gradient(y - reach * direction)
    difference = (plus - minus) / (2 * reach)
    product = torch.zeros_like(y) if product is None else product
    require(
        _close(product, difference, _loosened(tolerance, y)),
        "the second derivative by autograd differs from differences of the gradient by "
        f"{float((product - difference).abs().max()):.2e}: a custom backward of the energy is wrong twice over",
    )


def _corner_operations(energies: Tensor, leaf: Tensor) -> list[str]:
    """Names of the non-smooth operations on the graph between the leaf and the energies."""
    users: dict[Any, list[Any]] = {}  # the nodes that take the result of a node
    todo: list[Any] = [energies.grad_fn]
    while todo:
        node = todo.pop()
        for source, _ in node.next_functions:
            if source is not None:
                if source not in users:
                    todo.append(source)
                users.setdefault(source, []).append(node)
    reached: set[Any] = set()
    todo = [node for node in users if getattr(node, "variable", None) is leaf]
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += users.get(node, [])
    names = {type(node).__name__.rstrip("0123456789") for node in reached}
    corners = {operation for name, operation in _CORNERS.items() if name in names}
    return sorted(corners | {name for node in reached if (name := _corner_by_value(node)) is not None})


def _corner_by_value(node: Any) -> str | None:
    """The operation of a node that has a corner for some arguments only: a clamp that is active, the ℓ1 norm."""
    name = type(node).__name__.rstrip("0123456789")
    if name in ("ClampBackward", "ClampMinBackward", "ClampMaxBackward"):
        low, high = (getattr(node, f"_saved_{end}", None) for end in ("min", "max"))
        before = node._saved_self
        clipped = (low is not None and bool((before < low).any())) or (high is not None and bool((before > high).any()))
        return "clamp" if clipped else None
    if name == "LinalgVectorNormBackward" and node._saved_ord in (0, 1, float("inf")):
        return f"the norm with p={node._saved_ord:g}"
    return None


def _direction(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)


def _loosened(tolerance: float, y: Tensor) -> float:
    return tolerance if y.dtype == torch.float64 else max(tolerance, 2e-2)


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    scale = max(float(a.abs().max()), float(b.abs().max()), 1e-6)
    return bool((a - b).abs().max() <= tolerance * scale)
