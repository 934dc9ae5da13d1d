"""A program that a CPU runs operation by operation: oneDNN's layout for convolutions, fewer operations for softplus.

No kernels are fused without a compiler. Convolutions whose operands need no reordering, and second derivatives of
softplus in three passes over memory instead of eight, need none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from spen.gradients.compiled.fx_nodes import value_of
from spen.gradients.compiled.simplify import simplified

aten = torch.ops.aten


def for_cpu(program: GraphModule) -> GraphModule:
    """The same function of the same inputs, for a CPU."""
    if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        _channels_last(program)
    _short_softplus(program)
    return simplified(program)


# ── layout ──

# The index of a convolution's weight among the arguments.
_WEIGHTS: dict[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def _channels_last(program: GraphModule) -> None:
    """Weights of convolutions with channels innermost: results come in the layout of the weight, and all follow.

    A program in which one convolution has strides or groups, or is transposed, is left alone: a residual net with
    strides, a transposed convolution and group norms took 1.6 times as long in this layout.
    """
    graph, clones = program.graph, {}
    found = [(node, node.args[_WEIGHTS[node.target]]) for node in graph.nodes if node.target in _WEIGHTS]
    planes = [(node, weight) for node, weight in found if value_of(weight).dim() == 4]
    if not all(_is_plain(node) and _has_stride_one(node) for node, _ in planes):
        return
    for node, weight in planes:
        # The weight gradients of double backprop are convolutions too, whose "weights" are activations.
        if weight.op != "placeholder":
            continue
        value = weight.meta["val"]
        if weight not in clones:
            with graph.inserting_before(node):
                clones[weight] = graph.call_function(
                    aten.clone.default, (weight,), {"memory_format": torch.channels_last}
                )
            clones[weight].meta["val"] = value.clone(memory_format=torch.channels_last)
        node.replace_input_with(weight, clones[weight])


def _is_plain(node: Node) -> bool:
    """Whether a convolution is one of planes, in single precision, not transposed and of one group."""
    value = value_of(node.args[_WEIGHTS[node.target]])
    options: Any = node.args[6:9] if node.target is aten.convolution.default else node.args[7:10]
    transposed, _, groups = options
    return bool(value.dim() == 4 and value.dtype is torch.float32 and not transposed and groups == 1)


def _has_stride_one(node: Node) -> bool:
    stride: Any = node.args[_WEIGHTS[node.target] + 2]
    return all(s == 1 for s in stride)


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
    for node, factor, place, second in sorted(changes, key=lambda change: change[0]):
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
