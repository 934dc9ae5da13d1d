"""A program that a CPU runs operation by operation: oneDNN's layout, short chains, an order that frees early.

Without a compiler no kernels can be fused, but much is free: convolutions that need no reordering of their operands,
gradients of images with few channels as matrix products, second derivatives in three passes over memory instead of
eight, and an order of the operations in which results are used up before new ones are made.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from spen.descent.compiled.order import release_early
from spen.descent.compiled.simplify import simplified

aten = torch.ops.aten


def for_host(program: GraphModule) -> GraphModule:
    """The same function of the same inputs, for a CPU."""
    if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        _narrow_gradients(program)
        _channels_last(program)
    _short_softplus(program)
    simplified(program)
    release_early(program)
    program.recompile()
    return program


# ── layout ──

_NARROW = 4  # channels of an image up to which oneDNN fills its vectors badly

_WEIGHTS = {aten.convolution.default: 1, aten.convolution_backward.default: 2}  # where a convolution's weight stands


def _channels_last(program: GraphModule) -> None:
    """Weights of convolutions with channels innermost: results come in the layout of the weight, and all follow."""
    graph, clones = program.graph, {}
    for node in list(graph.nodes):
        if node.target not in _WEIGHTS:
            continue
        weight = node.args[_WEIGHTS[node.target]]
        # The weight gradients of double backprop are convolutions too, whose "weights" are activations.
        if not _is_plain(node, weight) or weight.op != "placeholder":
            continue
        value = weight.meta["val"]
        if weight not in clones:
            with graph.inserting_before(node):
                clones[weight] = graph.call_function(
                    aten.clone.default, (weight,), {"memory_format": torch.channels_last}
                )
            clones[weight].meta["val"] = value.clone(memory_format=torch.channels_last)
        node.replace_input_with(weight, clones[weight])


def _narrow_gradients(program: GraphModule) -> None:
    """∂/∂image of a convolution = fold(Wᵀ δ): a matrix product, and a sum of k² planes, shifted."""
    for node in list(program.graph.nodes):
        source = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
        if not isinstance(source, Node) or source.target is not aten.convolution_backward.default:
            continue
        cotangent, image, weight, _, stride, padding, dilation = source.args[:7]
        if not _is_plain(source, weight) or weight.meta["val"].shape[1] > _NARROW:  # type: ignore[union-attr]
            continue
        value, shape = cotangent.meta["val"], weight.meta["val"].shape  # type: ignore[union-attr]
        planes = shape[1:].numel()
        with program.graph.inserting_before(node):
            call = program.graph.call_function
            flat = call(aten.reshape.default, (cotangent, [*value.shape[:2], -1]))
            matrix = call(aten.t.default, (call(aten.reshape.default, (weight, [shape[0], planes])),))
            columns = call(
                aten.bmm.default, (call(aten.expand.default, (matrix, [value.shape[0], planes, shape[0]])), flat)
            )
            size = list(image.meta["val"].shape[2:])  # type: ignore[union-attr]
            folded = call(aten.col2im.default, (columns, size, list(shape[2:]), dilation, padding, stride))
        columns.meta["val"] = value.new_empty((value.shape[0], planes, value.shape[2:].numel()))
        folded.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(folded)
    simplified(program)


def _is_plain(node: Node, weight: Any) -> bool:
    """Whether a convolution is one of planes, in single precision, not transposed and of one group."""
    value = weight.meta["val"]
    options: Any = node.args[6:9] if node.target is aten.convolution.default else node.args[7:10]
    transposed, _, groups = options
    return bool(value.dim() == 4 and value.dtype is torch.float32 and not transposed and groups == 1)


# ── chains ──


def _short_softplus(program: GraphModule) -> None:
    """softplus′ = s and softplus″ = β s (1 − s), with one s for all that bend at the same place.

    Autograd takes a sigmoid for every first derivative, and for a second one another, a comparison, a conversion and
    two products more.
    """
    uses: Counter[Any] = Counter()
    firsts, seconds = [], []
    for node in program.graph.nodes:
        if node.target is aten.softplus_backward.default:
            firsts.append((node, node.args[0], tuple(node.args[1:])))
        elif found := _second_derivative(node):
            seconds.append((node, *found))
    for _, _, place in (*firsts, *seconds):
        uses[place] += 1
    slopes: dict[Any, Node] = {}
    changes: list[tuple[Node, Any, Any, bool]] = [(*f, False) for f in firsts] + [(*s, True) for s in seconds]
    position = {node: i for i, node in enumerate(program.graph.nodes)}
    for node, factor, place, second in sorted(changes, key=lambda c: position[c[0]]):
        if uses[place] < 2:
            continue
        with program.graph.inserting_before(node):
            if place not in slopes:
                slopes[place] = _slope(program, node, place)
            target = aten.sigmoid_backward.default if second else aten.mul.Tensor
            new = _call(program, target, (factor, slopes[place]), node)
            if second:
                new = _call(program, aten.mul.Scalar, (new, place[1]), node)
        node.replace_all_uses_with(new)


def _slope(program: GraphModule, node: Node, place: Any) -> Node:
    """s = σ(β z), and 1 from the threshold on."""
    value = node.meta["val"]
    one = program.graph.call_function(aten.full.default, ([], 1), {"dtype": value.dtype, "device": value.device})
    one.meta["val"] = value.new_ones(())
    return _call(program, aten.softplus_backward.default, (one, *place), node)


def _call(program: GraphModule, target: Any, arguments: tuple[Any, ...], like: Node) -> Node:
    node = program.graph.call_function(target, arguments)
    node.meta["val"] = like.meta["val"]
    return node


def _second_derivative(node: Node) -> tuple[Any, Any] | None:
    """(x, (z, β, threshold)) if the node is x · softplus″(z), as autograd writes it."""
    match node.target, node.args:
        case aten.mul.Scalar, (Node(target=aten.mul.Tensor) as product, beta):
            pass
        case _:
            return None
    match [a.target if isinstance(a, Node) else None for a in product.args]:
        case [aten.sigmoid_backward.default, aten._to_copy.default]:
            outer, mask = product.args
        case _:
            return None
    factor, sigmoid = outer.args  # type: ignore[union-attr]
    below = mask.args[0]  # type: ignore[union-attr]
    if not (isinstance(sigmoid, Node) and sigmoid.target is aten.sigmoid.default):
        return None
    if not (isinstance(below, Node) and below.target is aten.lt.Scalar and below.args[0] is sigmoid.args[0]):
        return None
    scaled = sigmoid.args[0]
    if not (isinstance(scaled, Node) and scaled.target is aten.mul.Scalar and scaled.args[1] == beta):
        return None
    return factor, (scaled.args[0], beta, below.args[1])
