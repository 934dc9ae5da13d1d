"""1×1 convolutions from or to one channel as products and sums: they fuse with the operations around them.

An energy that ends in Σ_c w_c h_c spends more on moving h to a convolution and back than on computing it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from spen.gradients.compiled.fx_nodes import inlined, value_of
from spen.gradients.compiled.pairing import separate

aten = torch.ops.aten


def without_narrow_products(program: GraphModule) -> GraphModule:
    """The same function; every 1×1 convolution from or to one channel, and its gradients, in elementary operations."""
    graph = program.graph
    separate(graph)
    for node in list(graph.nodes):
        if (found := _written_out(node)) is None:
            continue
        function, operands = found
        with graph.inserting_before(node):
            result = inlined(graph, function, *operands)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    program.recompile()
    return program


def _written_out(node: Node) -> tuple[Callable[..., Tensor], list[Any]] | None:
    if node.target is aten.convolution.default:
        image, weight, bias, *geometry = node.args
        if _applies(weight, geometry):
            return _forward, [image, weight] if bias is None else [image, weight, bias]
    elif node.target is operator.getitem:
        source: Any = node.args[0]
        if source.target is not aten.convolution_backward.default:
            return None
        cotangent, image, weight, _, *geometry = source.args[:-1]
        if _applies(weight, geometry):
            return (
                (_input_gradient, [cotangent, weight]) if node.args[1] == 0 else (_weight_gradient, [cotangent, image])
            )
    return None


def _applies(weight: Any, geometry: list[Any]) -> bool:
    value = value_of(weight)
    stride, padding, _, transposed, _, groups = geometry
    plain = set(stride) == {1} and set(padding) == {0} and not transposed and groups == 1
    return plain and value.shape[2:].numel() == 1 and min(value.shape[:2]) == 1


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _forward(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = image * _by_channel(weight, image)
    if weight.shape[0] == 1:
        result = result.sum(1, keepdim=True)
    return result if bias is None else result + _by_channel(bias, image)


def _input_gradient(cotangent: Tensor, weight: Tensor) -> Tensor:
    result = cotangent * _by_channel(weight, cotangent)
    return result.sum(1, keepdim=True) if weight.shape[1] == 1 else result


def _weight_gradient(cotangent: Tensor, image: Tensor) -> Tensor:
    planes = [d for d in range(image.dim()) if d != 1]
    shape = (cotangent.shape[1], image.shape[1], *[1] * (image.dim() - 2))
    return (cotangent * image).sum(planes).reshape(shape)
