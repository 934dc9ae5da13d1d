"""From a traced program to fast kernels: layout, precision, fusion."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch._inductor as inductor
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from spen.descent.compiled.trace import Flat

aten = torch.ops.aten
_WIDE = 16  # narrower contractions gain nothing from the matrix units and lose digits


def lowered(program: GraphModule, inputs: list[Tensor], *, fuse: bool, precision: torch.dtype | None) -> Flat:
    """The program as a function of tensors like ``inputs``.

    ``fuse`` hands it to torch.compile's backend (the program is traced already), with wide convolutions in
    channels-last layout. ``precision`` is the type the operands of wide convolutions and matrix products are rounded
    to; sums stay in the type of the inputs, and so do the narrow layers, the image among them, where rounding would
    cost the most.
    """
    if fuse or precision is not None:
        _rewrite(program, precision)
    if not fuse:
        return program
    return inductor.compile(program, list(inputs))  # type: ignore[return-value]


def _rewrite(program: GraphModule, precision: torch.dtype | None) -> None:
    graph = program.graph
    for node in list(graph.nodes):
        if node.target is aten.convolution.default and _wide(node.args[1]) and node.args[0].meta["val"].dim() == 4:
            _rewrite_convolution(graph, node, precision)
        elif node.target is aten.convolution_backward.default and _wide(node.args[2]) and _is_plane(node.args[1]):
            _rewrite_backward(graph, node, precision)
        elif precision is not None and node.target in (aten.mm.default, aten.bmm.default):
            _rewrite_product(graph, node, precision)
    graph.eliminate_dead_code()
    program.recompile()


def _wide(weight: Any) -> bool:
    value = weight.meta["val"]
    return value.dim() == 4 and min(value.shape[:2]) >= _WIDE and value.dtype is torch.float32


def _is_plane(image: Any) -> bool:
    return image.meta["val"].dim() == 4


def _prepared(graph: Graph, node: Any, precision: torch.dtype | None) -> Node:
    if precision is None:
        return graph.call_function(aten.clone.default, (node,), {"memory_format": torch.channels_last})
    return graph.call_function(
        aten._to_copy.default, (node,), {"dtype": precision, "memory_format": torch.channels_last}
    )


def _restored(graph: Graph, node: Node, precision: torch.dtype | None) -> Node:
    if precision is None:
        return node
    return graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32})


def _rewrite_convolution(graph: Graph, node: Node, precision: torch.dtype | None) -> None:
    image, weight, bias, *rest = node.args
    with graph.inserting_before(node):
        operands = [_prepared(graph, a, precision) for a in (image, weight)]
        result = graph.call_function(aten.convolution.default, (*operands, None, *rest))
        result = _restored(graph, result, precision)
        if bias is not None:  # added in full precision, and fused with what follows
            result = graph.call_function(
                aten.add.Tensor, (result, graph.call_function(aten.view.default, (bias, [1, -1, 1, 1])))
            )
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _rewrite_backward(graph: Graph, node: Node, precision: torch.dtype | None) -> None:
    cotangent, image, weight, _, *rest, mask = node.args
    with graph.inserting_before(node):
        operands = [_prepared(graph, a, precision) for a in (cotangent, image, weight)]
        both = [*mask[:2], False]  # type: ignore[index,misc]
        result = graph.call_function(aten.convolution_backward.default, (*operands, None, *rest, both))
    for user in list(node.users):
        index = user.args[1]
        with graph.inserting_before(user):
            if index == 2:
                part = graph.call_function(aten.sum.dim_IntList, (cotangent, [0, 2, 3]))
            else:
                part = _restored(graph, graph.call_function(operator.getitem, (result, index)), precision)
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)


def _rewrite_product(graph: Graph, node: Node, precision: torch.dtype) -> None:
    values = [a.meta["val"] for a in node.args]  # type: ignore[union-attr]
    if any(v.dtype is not torch.float32 or min(v.shape[-2:]) < _WIDE for v in values):
        return
    with graph.inserting_before(node):
        operands = [graph.call_function(aten._to_copy.default, (a,), {"dtype": precision}) for a in node.args]
        result = graph.call_function(node.target, tuple(operands))  # type: ignore[arg-type]
        result = _restored(graph, result, precision)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
