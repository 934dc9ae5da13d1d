"""∇E and H v as graphs of plain tensor operations, from the graph of an energy.

Derivatives are taken while tracing, so the program has no autograd left in it: it can be simplified, fused and
captured, and an energy that is compiled this way never has to be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from spen.descent.potential import score
from spen.gradients.compiled.errors import INSTEAD, NotTraceable, reason
from spen.gradients.compiled.fx_nodes import is_view, writes
from spen.gradients.compiled.simplify import simplified
from spen.gradients.second_order import NotTwiceDifferentiable

Flat = Callable[..., list[Tensor]]
Lowering = Callable[[GraphModule, list[Tensor]], Flat]


def evaluate(energy: Any, view: Any, point: Tensor, features: Any) -> Tensor:
    """The function that Dynamo traces."""
    return score(energy, view(point), features)


def traced(function: Callable[..., list[Tensor]], inputs: list[Tensor], name: str) -> GraphModule:
    """The operations of a function, derivatives within it included, as a graph. ``name`` is for the error."""
    try:
        # One fake mode for all results: without it make_fx makes one for each, which takes a third of the time.
        with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
            program = make_fx(function, decomposition_table=_WITH_MEMORY)(*inputs)
        return simplified(_pure(program))
    except NotTwiceDifferentiable:
        raise
    except Exception as error:
        raise NotTraceable(f"{name} cannot be traced: {reason(error)}. {INSTEAD}") from error


def _with_memory(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def applied(tensor: Tensor, *others: Any) -> Any:
        if not tensor._is_zerotensor():
            return NotImplemented  # traced without a change
        return operation(torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device), *others)

    return applied


# The tangent of a constant is a tensor of zeros without memory, which torch hands to these kernels all the same while
# it traces: the process would crash.
_WITH_MEMORY = {o: _with_memory(o) for o in (torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar)}


def _pure(program: GraphModule) -> GraphModule:
    """In-place operations on results that are not read later, as operations with new results (a softmax's tangent).

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
    return program


def _is_last(node: Node, written: Any, seen: set[Node]) -> bool:
    """Whether ``node`` is the last user of what it writes into, which has no views."""
    if not isinstance(written, Node) or written.op != "call_function" or is_view(written):
        return False
    return all(user in seen and not is_view(user) for user in written.users if user is not node)


def written(program: GraphModule) -> set[int]:
    """The inputs that a program writes into, by their number."""
    places = {node: i for i, node in enumerate(program.graph.find_nodes(op="placeholder"))}
    found = set()
    for node in program.graph.nodes:
        if node.op != "call_function" or not writes(node):
            continue
        changed = [a for a in node.all_input_nodes if _is_changed(node, a)]
        while changed:
            at = changed.pop()
            if at in places:
                found.add(places[at])
            elif at.op == "call_function" and is_view(at):
                changed.append(at.args[0])
    return found


def _is_changed(node: Node, operand: Node) -> bool:
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = [*zip(arguments, node.args, strict=False), *((a, node.kwargs.get(a.name)) for a in arguments)]
    return any(value is operand and a.alias_info is not None and a.alias_info.is_write for a, value in given)
