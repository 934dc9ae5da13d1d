"""∇E and H v as graphs of plain tensor operations, read off one real evaluation.

Derivatives are taken while tracing, so the program has no autograd left in it: it can be simplified, fused and
captured, and an energy that is compiled this way never has to be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spen import trees
from spen.descent.compiled.keep import alone, hand_over
from spen.descent.compiled.order import is_view, writes
from spen.descent.compiled.pieces import Pieces, silenced
from spen.descent.compiled.simplify import simplified, speaks_to_host
from spen.descent.compiled.within import within
from spen.descent.gradients.second_order import NotTwiceDifferentiable, Products
from spen.descent.potential import Potential

Flat = Callable[..., list[Tensor]]
Lowering = Callable[[GraphModule, list[Tensor]], Flat]


class NotTraceable(RuntimeError):
    """The energy cannot be written down as a fixed list of operations."""


class Program:
    """∇E and the products of one strategy, for one energy and inputs of one shape.

    Parameters and buffers are inputs of the program: they may change in value, not in shape. Numbers that are no
    tensors are part of it. With ``keep``, ∇E hands its expensive results over to the products (``keep.py``). With
    ``rows``, the batch goes through in pieces of so many examples at most.
    """

    def __init__(
        self,
        potential: Potential,
        point: Tensor,
        product: Callable[[Potential, Tensor, Tensor], Products],
        lowering: Lowering,
        *,
        keep: bool = False,
        rows: int | None = None,
    ) -> None:
        self.pieces = Pieces(point.shape[0], rows)
        self._names = [n for n, _ in potential.energy.named_parameters()]
        self._names += [n for n, _ in potential.energy.named_buffers()]
        self._present: list[bool] = []
        self._spec = pytree.tree_flatten(potential.features)[1]
        self._fixed = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in pytree.tree_leaves(potential.features)]
        wants = [leaf.requires_grad for leaf in trees.tensors(potential.features)]
        self._features = len(wants)
        self._per_example = 1 + sum(wants)  # results of the products with one row per example; the others are sums
        whole, _ = next(iter(self.pieces))
        inputs = self._cut([point.detach().contiguous(), *self._inputs(potential)], whole, 1 + len(wants))
        rebuilt = self._rebuilder(potential, wants)

        def gradient(at: Tensor, *tensors: Tensor) -> list[Tensor]:
            return rebuilt(tensors, lambda bound: list(bound.gradient(at)))

        def products(at: Tensor, direction: Tensor, *tensors: Tensor) -> list[Tensor]:
            at_point, rest = rebuilt(tensors, lambda bound: product(bound, at, direction))
            self._present = [bar is not None for bar in (at_point, *rest)]
            return [bar.detach() for bar in (at_point, *rest) if bar is not None]

        both = (inputs, [inputs[0], torch.ones_like(inputs[0]), *inputs[1:]])
        graphs = [_traced(gradient, both[0], potential), _traced(products, both[1], potential)]
        self.capturable = not any(speaks_to_host(graph) for graph in graphs)
        """Whether a CUDA graph may hold the programs: nothing in them waits for the device or reads host memory."""
        self.kept = hand_over(graphs[0], graphs[1]) if keep else 0
        """How many results of ∇E the products take over; 0 too where none is expensive."""
        with torch.no_grad():
            # Before the programs are lowered, which may change them in place.
            self._kept = lowering(alone(graphs[0], self.kept), both[0]) if self.kept else None
            self._gradient = lowering(graphs[0], both[0])
            known = self._gradient(*both[0])[2:] if self.kept else []  # as they come, in the layout they have
            self._product = lowering(graphs[1], [*both[1], *known])

    def gradient(self, potential: Potential, point: Tensor) -> tuple[Tensor, ...]:
        """(∇E, E) at a point, and what the product there wants back: takes the place of ``Potential.gradient``."""
        inputs = [point.detach().contiguous(), *self._inputs(potential)]
        with torch.no_grad():
            parts = [self._gradient(*self._cut(inputs, rows, 1 + self._features)) for rows, _ in self.pieces]
            joined = [self.pieces.joined([part[i] for part in parts]) for i in range(2)]
        return (*joined, *(result for part in parts for result in part[2:]))

    def product(self, potential: Potential, point: Tensor, direction: Tensor, *kept: Tensor) -> Products:
        """H v and ∂⟨v, ∇E⟩: takes the place of the strategy's own product. Nothing ``kept``: it is computed again."""
        inputs = [point.detach().contiguous(), direction.contiguous(), *self._inputs(potential)]
        known, here = iter(kept), sum(self._present[: self._per_example])
        rows_of: list[list[Tensor]] = []
        sums: list[Tensor] = []
        with torch.no_grad():
            for rows, again in self.pieces:
                at, towards, *others = self._cut(inputs, rows, 2 + self._features)
                handed = [next(known) for _ in range(self.kept)] if kept else []
                if self._kept is not None and not kept:
                    handed = self._kept(at, *others)
                found = self._product(at, silenced(towards, again), *others, *handed)
                del handed
                rows_of.append(list(found[:here]))
                sums = torch._foreach_add(sums, list(found[here:])) if sums else list(found[here:])  # type: ignore[assignment]
            joined = iter([*(self.pieces.joined(parts) for parts in zip(*rows_of, strict=True)), *sums])
        at_point, *rest = (next(joined) if present else None for present in self._present)
        return at_point, rest

    def _cut(self, inputs: list[Tensor], rows: slice, moving: int) -> list[Tensor]:
        """The inputs of a piece: of the first ``moving`` its rows, of the others everything."""
        if self.pieces.number == 1:
            return inputs
        return [*(t[rows] for t in inputs[:moving]), *inputs[moving:]]

    def _inputs(self, potential: Potential) -> list[Tensor]:
        energy = potential.energy
        own = [*(p.detach() for p in energy.parameters()), *energy.buffers()]
        return [*(f.detach() for f in trees.tensors(potential.features)), *own]

    def _rebuilder(
        self, potential: Potential, wants: list[bool]
    ) -> Callable[[tuple[Tensor, ...], Callable[[Potential], Any]], Any]:
        learns = {n: p.requires_grad for n, p in potential.energy.named_parameters()}

        def rebuilt(tensors: tuple[Tensor, ...], function: Callable[[Potential], Any]) -> Any:
            leaves = [t.detach().requires_grad_(w) for t, w in zip(tensors, wants, strict=False)]
            named = {
                n: t.detach().requires_grad_(learns.get(n, False))
                for n, t in zip(self._names, tensors[len(wants) :], strict=True)
            }
            moving = iter(leaves)
            features = pytree.tree_unflatten(
                [next(moving) if fixed is None else fixed[0] for fixed in self._fixed], self._spec
            )
            learned = tuple(named[n] for n in learns if learns[n])
            bound = Potential(potential.energy, features, potential.view, learned)  # type: ignore[arg-type]
            return within(potential.energy, named, lambda: function(bound))

        return rebuilt


def _traced(function: Callable[..., list[Tensor]], inputs: list[Tensor], potential: Potential) -> GraphModule:
    try:
        return simplified(_pure(make_fx(function, decomposition_table=_WITH_MEMORY)(*inputs)))
    except NotTwiceDifferentiable:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotTraceable(
            f"the energy {type(potential.energy).__name__} cannot be traced: {reason[:300]} "
            "Use the strategy inside Compiled by itself"
        ) from error


def _with_memory(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def applied(tensor: Tensor, *others: Any) -> Any:
        if not tensor._is_zerotensor():
            return NotImplemented  # traced as it is
        return operation(torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device), *others)

    return applied


# The tangent of a constant is a tensor of zeros without memory, which torch hands to these kernels all the same while
# it traces: the process would crash.
_WITH_MEMORY = {o: _with_memory(o) for o in (torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar)}


def _pure(program: GraphModule) -> GraphModule:
    """Writes into results that nobody looks at later, as new results: the tangent of a softmax is divided in place.

    Views become reshapes: what was one piece of memory may not be in another layout.
    """
    seen: set[Node] = set()
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
        if node.op == "call_function" and writes(node) and _is_last(node, node.args[0], seen):
            name, overload = node.target._schema.name.removeprefix("aten::"), node.target._overloadname
            new = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
            if hasattr(new, overload):
                node.target = getattr(new, overload)
        seen.add(node)
    program.recompile()
    return program


def _is_last(node: Node, written: Any, seen: set[Node]) -> bool:
    """Whether ``node`` alone still uses what it writes into, and nothing else looks at that memory."""
    if not isinstance(written, Node) or written.op != "call_function" or is_view(written):
        return False
    return all(user in seen and not is_view(user) for user in written.users if user is not node)
