"""H v and ∂_θ⟨v, ∇E⟩ by double backprop, and the errors for energies that have no second derivative."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.loop import Descend
from spen.descent.potential import Potential, ScoreFunction, input_gradient
from spen.gradients.snapshots import drawing_from, generators, unhooked, untouched

Products = tuple[Tensor | None, list[Tensor | None]]
"""(H v at the point, and ∂⟨v, ∇E⟩ for each feature tensor, then each parameter); None means zero."""


class NotTwiceDifferentiable(RuntimeError):
    """The energy has no second derivative that this strategy could use."""


def exact_product(
    potential: Potential, point: Tensor, direction: Tensor, part: ScoreFunction | None = None, *, search: bool = False
) -> Products:
    """∂⟨v, ∇E⟩ by differentiating the gradient's own graph. ``part`` restricts it to some terms of the energy.

    ``search`` looks for operations without a second derivative first (``Graph``); a part is always searched.
    """
    targets: list[Tensor] = [*potential.feature_tensors(), *potential.parameters()]
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        energies = potential(leaf, part)
        if search or part is not None:
            require_twice_differentiable(potential, energies, leaf)
        gradient = input_gradient(energies, leaf, create_graph=True)
    if not gradient.requires_grad:
        return None, [None] * len(targets)
    try:
        # A trial leaves the graph behind weights that the user has computed before (``parametrize.cached``).
        at_point, *rest = torch.autograd.grad(
            gradient, [leaf, *targets], direction, allow_unused=True, retain_graph=search
        )
    except RuntimeError as error:
        raise explained(error, potential, point) from error
    return at_point, list(rest)


# Energies whose second derivative has been tried. A later failure is autograd's own error, never a wrong number.
_tried: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def require_second_derivative(potential: Potential, descend: Descend, start: Tensor) -> None:
    """Try the second derivative on one example, once for each energy, while the error can still be explained.

    The example is there twice: batch norm in training mode refuses a batch of one.
    """
    if potential.energy in _tried:
        return
    rows = torch.zeros(2, dtype=torch.long, device=start.device)
    point = descend.first_point(start[rows])
    with untouched(point.device, potential.energy), unhooked(potential.parameters()):
        exact_product(potential.detached(rows), point, torch.ones_like(point), search=True)
    _tried.add(potential.energy)


def require_same_product(product: Callable[..., Products], potential: Potential, point: Tensor) -> None:
    """Refuse a product by forward mode that differs from double backprop, on two examples.

    Both differentiate ∇E as autograd computes it. Forward mode passes through ``torch.no_grad()``, and forms J v where
    Jᵀv is wanted, which differ if a hook or a custom Function changes a gradient.
    """
    rows = torch.arange(min(2, point.shape[0]), device=point.device)
    few, at = potential.detached(rows), point[:2].detach()
    direction = a_direction(at)
    with untouched(point.device, potential.energy), unhooked(potential.parameters()):
        drawn = generators(point.device)
        found = product(few, at, direction)
        with drawing_from(drawn, point.device):
            expected = exact_product(few, at, direction, search=True)
    if apart(found, expected, point):
        raise NotTwiceDifferentiable(
            f"forward mode differentiates the energy {type(potential.energy).__name__} otherwise than double backprop: "
            "it reads y under torch.no_grad(), a hook or a custom Function changes a gradient, or it changes with "
            "every evaluation. Write x.detach() for what is constant, or use gradient=Checkpointed()"
        )


def a_direction(point: Tensor) -> Tensor:
    """A fixed direction in which to compare products; no generator of torch is touched."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(point.shape, generator=draws, dtype=torch.float64).to(point)


def apart(found: Products, expected: Products, point: Tensor, *, lowered: bool = False) -> bool:
    """Whether two products differ by more than rounding: H v, or ∂⟨v, ∇E⟩ by all features and parameters together.

    ``lowered`` says that one of them has a shorter type of numbers than the point; under autocast both have.
    """
    lowered = lowered or torch.is_autocast_enabled(point.device.type)
    slack = 0.5 if lowered else _APART.get((point.dtype, point.is_cuda), 0.5)
    at_point, others = [(found[0], expected[0])], list(zip(found[1], expected[1], strict=True))
    sizes = torch.stack([_norm([b for _, b in part], point) for part in (at_point, others)])
    away = [[plus(a, None if b is None else -b) for a, b in part] for part in (at_point, others)]
    differences = torch.stack([_norm(part, point) for part in away])
    least = 1e4 * torch.finfo(point.dtype).eps * sizes.sum()
    # Numbers that are not finite are reported elsewhere.
    return bool((differences > slack * sizes + least).any())


_APART = {(torch.float64, False): 1e-6, (torch.float64, True): 1e-6, (torch.float32, False): 1e-2}
_APART |= {(torch.float32, True): 0.1}  # products may be in TF32


def _norm(tensors: list[Tensor | None], point: Tensor) -> Tensor:
    """Of all numbers together, in double precision, on the device."""
    parts = [t.detach().abs() for t in tensors if t is not None]
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64).to(point.device) for t in parts]
    return torch.stack(norms).norm() if norms else torch.zeros((), dtype=torch.float64, device=point.device)


def explained(error: RuntimeError, potential: Potential, point: Tensor) -> RuntimeError:
    """The same error with the name of the operation, if it is one of the known kinds."""
    text = str(error)
    if missing := re.search(r"derivative for (?:aten::)?(\w+) is not implemented", text):
        return _only_once(potential, missing[1])
    if "once_differentiable" in text or "does not currently support double backward" in text:
        with torch.enable_grad():
            energies = potential(point.detach().requires_grad_())
        return _only_once(potential, " or ".join(Graph.of(energies).once_differentiable) or "a custom Function")
    return error


def _only_once(potential: Potential, operation: str) -> NotTwiceDifferentiable:
    return NotTwiceDifferentiable(
        f"the energy {type(potential.energy).__name__} has no second derivative: {operation} can be differentiated "
        "only once. Use gradient=FiniteDifference(), which needs first derivatives alone"
    )


@dataclass
class Graph:
    """What is on the graph of an energy's value, from the energies down to the point, features and parameters."""

    once_differentiable: list[str]
    leaves: list[Tensor]
    operations: set[str]
    users: dict[Any, list[Any]]
    """The functions that take what a function returns."""

    @classmethod
    def of(cls, energies: Tensor, until: Iterable[Tensor] = ()) -> Graph:
        """Search the graph, but not behind the tensors ``until``.

        A Python autograd Function may have a backward without a derivative. Autograd raises for it only if the
        cotangent that reaches it needs a gradient. Where that is a constant, as right below a sum, the Function drops
        out of the second derivative without an error: the graph has to be searched.
        """
        names: set[str] = set()
        leaves: list[Tensor] = []
        operations: set[str] = set()
        seen: set[object] = {t.grad_fn for t in until}
        stack: list[Any] = [energies.grad_fn]
        users: dict[Any, list[Any]] = {}
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            operations.add(node.name())
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                names.update(_once_differentiable(node))
            elif (leaf := getattr(node, "variable", None)) is not None:
                leaves.append(leaf)
            for parent, _ in node.next_functions:
                users.setdefault(parent, []).append(node)
                stack.append(parent)
        return cls(sorted(names), leaves, operations, users)

    def dtypes(self, point: Tensor) -> set[torch.dtype]:
        """The types of the results that depend on the point."""
        found: set[torch.dtype] = set()
        seen: set[object] = set()
        # The graph begins at the function that made the point, or at the one that collects the gradient of a leaf.
        stack = [node for node in self.users if node is not None and _begins(node, point)]
        while stack:
            for user in self.users.get(stack.pop(), ()):
                if user not in seen:
                    seen.add(user)
                    found.update(meta.dtype for meta in user._input_metadata)
                    stack.append(user)
        return found


def _begins(node: Any, point: Tensor) -> bool:
    return node is point.grad_fn if point.grad_fn is not None else getattr(node, "variable", None) is point


def _once_differentiable(node: Any) -> list[str]:
    name = type(node).__name__.removesuffix("Backward")
    owner = getattr(node, "_forward_cls", None)
    code = getattr(getattr(owner, "backward", None), "__code__", None)
    if name == "CompiledFunction":
        return ["torch.compile"]
    return [name] if code is not None and code.co_qualname.startswith("once_differentiable") else []


def require_twice_differentiable(potential: Potential, energies: Tensor, point: Tensor) -> None:
    """Refuse an energy with an operation on its graph that has no second derivative."""
    if names := Graph.of(energies, _known(potential, point)).once_differentiable:
        raise _only_once(potential, " or ".join(names))


def require_known_tensors(
    potential: Potential,
    energies: Tensor,
    point: Tensor,
    *,
    twice: bool,
    forward: Callable[..., Products] | None = None,
    radius: float | None = None,
) -> None:
    """Refuse an energy that a replay would differentiate wrongly.

    Its backward pass sends gradients to the features and to the parameters of the energy, and to nothing else. With
    ``twice`` it needs second derivatives; without, differences of first ones, which half precision cannot supply. With
    ``forward``, a product by forward mode, is compared with double backprop. ``radius`` is that of the differences.
    """
    known = _known(potential, point)
    graph = Graph.of(energies, known)
    if forward is not None and on_gpu(point) and any("GroupNorm" in name for name in graph.operations):
        raise NotTwiceDifferentiable(
            f"the energy {type(potential.energy).__name__} normalises groups, and torch's forward mode through "
            "group_norm is wrong on a GPU. Use gradient=Checkpointed() or gradient=Compiled()"
        )
    if twice and graph.once_differentiable:
        raise _only_once(potential, " or ".join(graph.once_differentiable))
    for leaf in graph.leaves:
        if all(leaf is not t for t in known):
            raise unknown_tensor(potential.energy, leaf)
    if not twice and not torch.is_autocast_enabled(point.device.type):
        dtypes = graph.dtypes(point)
        refuse_half_precision(potential.energy, dtypes)
        if radius is None and point.dtype is torch.float64 and torch.float32 in dtypes:
            raise ValueError(
                f"the energy {type(potential.energy).__name__} computes in torch.float32 and y is in torch.float64, so "
                "the default radius of finite differences is too small: use one type for both, or "
                "FiniteDifference(radius=1e-2)"
            )
    if forward is not None and point.shape[0]:
        require_same_product(forward, potential, point)


def _known(potential: Potential, point: Tensor) -> list[Tensor]:
    """The tensors that an energy is differentiated by. What is behind them autograd differentiates itself, once."""
    return [point, *potential.feature_tensors(), *potential.parameters()]


def on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def unknown_tensor(energy: nn.Module, tensor: Tensor) -> ValueError:
    """The error for a tensor that no strategy but Exact would send a gradient to."""
    return ValueError(
        f"the energy {type(energy).__name__} reads a tensor of shape {tuple(tensor.shape)} that requires a gradient "
        "and is neither a parameter of the energy nor one of its features: register it as an nn.Parameter, let F "
        "return it, or use gradient=Exact()"
    )


def refuse_half_precision(energy: nn.Module, dtypes: set[torch.dtype]) -> None:
    """Refuse finite differences of numbers with three digits: they are noise."""
    for dtype in dtypes & {torch.bfloat16, torch.float16}:
        raise ValueError(
            f"the energy {type(energy).__name__} computes in {dtype}, where finite differences are noise: keep its "
            "parameters in float32 (torch.autocast may lower the precision of training), or use gradient=Checkpointed()"
        )


def added(first: Products, second: Products) -> Products:
    """The sum of two products."""
    return plus(first[0], second[0]), [plus(a, b) for a, b in zip(first[1], second[1], strict=True)]


def plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a + b, where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def vjp(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], inputs: list[Tensor], *, create_graph: bool = False
) -> list[Tensor | None]:
    """The cotangents of the inputs from those of the outputs; None is zero, and an output may be a constant."""
    live = [(o, bar) for o, bar in zip(outputs, cotangents, strict=True) if bar is not None and o.requires_grad]
    if not live or not inputs:
        return [None] * len(inputs)
    reached, given = zip(*live, strict=True)
    return list(torch.autograd.grad(reached, inputs, given, create_graph=create_graph, allow_unused=True))
