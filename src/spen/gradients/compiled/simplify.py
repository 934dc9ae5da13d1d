"""Remove from a traced derivative what is known to be zero, and what is not used.

Forward-mode differentiation gives every constant a tangent of zeros and convolves it all the same; a convolution's
backward computes the gradient of weights that are not wanted. On the deep prior this is half of the work.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from spen.gradients.compiled.fx_nodes import call, writes

aten = torch.ops.aten

# Linear in the first argument: zero in, zero out.
_LINEAR = {
    getattr(getattr(aten, name), overload)
    for name, overload in (
        *(
            (n, "default")
            for n in ("expand", "alias", "view", "reshape", "_unsafe_view", "detach", "clone", "_to_copy")
        ),
        *((n, "default") for n in ("neg", "t", "permute", "squeeze", "unsqueeze", "sum", "mean", "_conj")),
        *((n, "default") for n in ("index_select", "unsqueeze", "roll", "flip", "constant_pad_nd")),
        *((n, "default") for n in ("softplus_backward", "sigmoid_backward", "tanh_backward", "threshold_backward")),
        *((n, "default") for n in ("silu_backward", "gelu_backward", "elu_backward", "_softmax_backward_data")),
        *((n, "default") for n in ("_log_softmax_backward_data", "slice_backward", "select_backward")),
        *((n, "default") for n in ("reflection_pad2d", "reflection_pad2d_backward", "replication_pad2d")),
        *((n, "default") for n in ("replication_pad2d_backward", "avg_pool2d", "avg_pool2d_backward", "gather")),
        ("transpose", "int"),
        ("squeeze", "dim"),
        ("squeeze", "dims"),
        ("sum", "dim_IntList"),
        ("mean", "dim"),
        ("slice", "Tensor"),
        ("select", "int"),
        ("mul", "Scalar"),
        ("div", "Tensor"),
        ("div", "Scalar"),
        ("to", "dtype"),
    )
    if hasattr(getattr(aten, name, None), overload)
}
_PRODUCTS = {aten.mul.Tensor, aten.mm.default, aten.bmm.default, aten.dot.default, aten.mv.default}
_ZEROS = {aten.zeros.default, aten.zeros_like.default, aten._efficientzerotensor.default, aten.new_zeros.default}
_SAME = {aten.alias.default, aten.detach.default}


def simplified(program: GraphModule) -> GraphModule:
    """The same function without products of zeros, aliases, dead code and unused gradients of convolutions."""
    graph = program.graph
    if not any(writes(node) for node in graph.nodes):  # a tensor of zeros may have been filled
        _drop_zeros(program)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target is aten.convolution_backward.default:
            used = {user.args[1] for user in node.users if user.users}
            *rest, mask = node.args
            node.args = (*rest, [wanted and i in used for i, wanted in enumerate(mask)])
    graph.eliminate_dead_code()
    program.recompile()
    return program


def ancestors(nodes: Sequence[Node], until: Sequence[Node] = ()) -> set[Node]:
    """Some nodes and all that they are computed from; nothing behind the nodes ``until``."""
    found, stack = set(until), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def part_of(program: GraphModule, inputs: Sequence[Node], results: Sequence[Node]) -> GraphModule:
    """A program of its own for some results, from nodes that become its inputs."""
    needed = ancestors(results, inputs)
    graph, copies = Graph(), dict[Node, Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in program.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in results])
    return simplified(GraphModule(program, graph))


def _drop_zeros(program: GraphModule) -> None:
    zeros: set[Node] = set()
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        if _is_zero(node, zeros):
            zeros.add(node)
        elif node.target in (aten.add.Tensor, aten.sub.Tensor):
            left, right = node.args[:2]
            if right in zeros and _alike(left, node):
                node.replace_all_uses_with(left)
            elif left in zeros and node.target is aten.add.Tensor and not node.kwargs and _alike(right, node):
                node.replace_all_uses_with(right)
        elif node.target in _SAME:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    for node in zeros:
        _give_memory(program, node)


def _give_memory(program: GraphModule, node: Node) -> None:
    """Zeros that share one number in memory get memory of their own: a compiler may write into what it is given."""
    value = node.meta.get("val")
    if node.target is not aten.expand.default or not isinstance(value, torch.Tensor) or not node.users:
        return
    with program.graph.inserting_before(node):
        full = call(program.graph, aten.full.default, list(value.shape), 0, dtype=value.dtype, device=value.device)
    node.replace_all_uses_with(full)


def _is_zero(node: Node, zeros: set[Node]) -> bool:
    target, arguments = node.target, node.args
    if target in _ZEROS:
        return True
    if target in _LINEAR:
        return arguments[0] in zeros and not (target is aten.constant_pad_nd.default and any(arguments[2:]))
    if target in _PRODUCTS or target in (aten.add.Tensor, aten.sub.Tensor):
        matters = any if target in _PRODUCTS else all
        return bool(matters(a in zeros for a in arguments[:2]))
    if target is aten.convolution.default:
        image, weight, bias = arguments[:3]
        return (image in zeros or weight in zeros) and (bias is None or bias in zeros)
    if target is aten.convolution_backward.default:
        return arguments[0] in zeros
    if target is operator.getitem:
        source, index = arguments
        if source in zeros:
            return True
        if isinstance(source, Node) and source.target is aten.convolution_backward.default:
            _, image, weight = source.args[:3]
            return bool((index == 0 and weight in zeros) or (index == 1 and image in zeros))
    return False


def _alike(a: Any, b: Node) -> bool:
    if not isinstance(a, Node):
        return False
    first, second = a.meta.get("val"), b.meta.get("val")
    return first is not None and second is not None and (first.shape, first.dtype) == (second.shape, second.dtype)


_WAITING = ("nonzero", "masked_select", "unique", "_local_scalar_dense", "item", "equal", "bincount")


def speaks_to_host(program: GraphModule) -> bool:
    """Whether some operation copies between host and device, or has a result whose size the host must wait for."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        inputs = [v for a in node.all_input_nodes if isinstance(v := a.meta.get("val"), torch.Tensor)]
        value = node.meta.get("val")
        moved = isinstance(value, torch.Tensor) and any(v.device != value.device and v.dim() > 0 for v in inputs)
        copied = node.target in (aten._to_copy.default, aten.copy.default) and any(
            v.device != value.device for v in inputs
        )
        masked = "index" in str(node.target) and any(v.dtype is torch.bool for v in inputs)
        if moved or copied or masked or any(f".{name}." in f".{node.target}." for name in _WAITING):
            return True
    return False
