"""Primal and tangent through the same weights: one product on a batch of both instead of two.

The tangent of z = W ∗ a is ż = W ∗ ȧ, and the gradient of the weights moves by dẆ = Σ δ̇ a + Σ δ ȧ. So in a program that
carries both, most products come in pairs:

    [z; ż] = W ∗ [a; ȧ]        [ε; ε̇] = Wᵀ ∗ [δ; δ̇]        dẆ = Σ [δ; δ̇] [ȧ; a]

A pair with twice the batch fills a GPU better, and the last one needs no sum of two results. The operands are
concatenated where they are made, in one kernel with what makes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from spen.gradients.compiled.fx_nodes import call, value_of, writes

aten = torch.ops.aten
_VIEWS = {aten.t.default, aten.transpose.int, aten.permute.default}
INPUT, WEIGHT = 0, 1  # results of a convolution's backward


class Kind(NamedTuple):
    """What two products must have in common to become one: weights, geometry and the shape of an example."""

    target: Any
    weight: Any
    rest: str


def paired(program: GraphModule) -> GraphModule:
    """The same function with convolutions by one weight merged in twos, and sums of two weight gradients in one."""
    graph = program.graph
    if any(_stays(node) for node in graph.nodes):
        return program
    separate(graph)
    joined = _Joined(graph)
    for node in list(graph.nodes):
        _merge_sum(graph, node, joined)
    for kind in _kinds(graph):
        _merge_kind(graph, kind, joined)
    graph.eliminate_dead_code()
    program.recompile()
    return program


def _stays(node: Node) -> bool:
    """Whether the order of operations around it matters: it writes into a tensor, or draws random numbers."""
    return writes(node) or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def separate(graph: Graph) -> None:
    """One node for each result of a convolution's backward; the gradient of a bias is a sum."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default:
            continue
        cotangent, *rest, _ = node.args
        for user in list(node.users):
            index = user.args[1]
            with graph.inserting_before(node):
                if index == 2:
                    planes = [d for d in range(value_of(cotangent).dim()) if d != 1]
                    part = call(graph, aten.sum.dim_IntList, cotangent, planes)
                else:
                    part = _backward(graph, index, cotangent, *rest)
            user.replace_all_uses_with(part)
            graph.erase_node(user)
        graph.erase_node(node)


def _backward(graph: Graph, index: int, *arguments: Any) -> Node:
    """One result of convolution_backward(cotangent, image, weight, …)."""
    both = call(graph, aten.convolution_backward.default, *arguments, [i == index for i in range(3)])
    return call(graph, operator.getitem, both, index)


class _Joined:
    """Concatenations by what they hold, in either order, so that two products can share one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[tuple[Node, Node], Node] = {}

    def order(self, first: Node, second: Node) -> bool:
        """Whether to put ``first`` first: not if the two are there already the other way round."""
        return (second, first) not in self.known

    def __call__(self, first: Node, second: Node) -> Node:
        """[first; second], made at the insertion point unless it is there already, before that point."""
        if (whole := _whole(first, second)) is not None:
            return whole
        key = (first, second)
        if key not in self.known:
            self.known[key] = call(self.graph, aten.cat.default, [first, second], 0)
        return self.known[key]


def _whole(first: Node, second: Node) -> Node | None:
    """What the two are the halves of."""
    if not first.target is second.target is aten.slice.Tensor:
        return None
    (source, d, start, middle), (other, e, begin, end) = first.args, second.args
    halves = source is other and d == e == 0 and start == 0 and middle == begin and end == _shape(source)[0]
    return source if halves else None  # type: ignore[return-value]


# ── sums of weight gradients ──


def _merge_sum(graph: Graph, node: Node, joined: _Joined) -> None:
    if node.target is not aten.add.Tensor or node.kwargs:
        return
    left, right = node.args
    if left is right or not all(isinstance(a, Node) and len(a.users) == 1 for a in (left, right)):
        return
    if not (_is_weight_gradient(left) and _is_weight_gradient(right)):
        return
    merged = _merged_gradients(graph, node, left, right, joined)  # type: ignore[arg-type]
    if merged is not None:
        node.replace_all_uses_with(merged)
        for old in (node, left, right):
            graph.erase_node(old)  # type: ignore[arg-type]


def _merged_gradients(graph: Graph, node: Node, left: Node, right: Node, joined: _Joined) -> Node | None:
    one, other = left.args[0].args, right.args[0].args  # type: ignore[union-attr]
    if one[4:] != other[4:] or not all(_example(a) == _example(b) for a, b in zip(one[:2], other[:2], strict=True)):
        return None
    if _shape(one[2]) != _shape(other[2]):
        return None
    with graph.inserting_before(node):
        cotangents, images = joined(one[0], other[0]), joined(one[1], other[1])  # type: ignore[arg-type]
        return _backward(graph, WEIGHT, cotangents, images, *one[2:-1])


def _is_weight_gradient(node: Any) -> bool:
    return (
        node.target is operator.getitem
        and node.args[1] == WEIGHT
        and node.args[0].target is aten.convolution_backward.default
    )


# ── products of one weight ──


def _kinds(graph: Graph) -> list[Kind]:
    kinds: dict[Kind, int] = {}
    for node in graph.nodes:
        if (kind := _kind(node)) is not None:
            kinds[kind] = kinds.get(kind, 0) + 1
    return [kind for kind, count in kinds.items() if count > 1]


def _kind(node: Node) -> Kind | None:
    """Of a convolution, or of the input gradient of one."""
    if node.target is aten.convolution.default:
        image, weight, _, *rest = node.args
        return Kind(node.target, _origin(weight), f"{rest} {_example(image)}")
    if node.target is operator.getitem and node.args[1] == INPUT:
        source: Any = node.args[0]
        if source.target is aten.convolution_backward.default:
            cotangent, image, weight, _, *rest = source.args
            return Kind(source.target, _origin(weight), f"{rest} {_example(cotangent)} {_example(image)}")
    return None


def _origin(weight: Any) -> Any:
    """What a transposed weight is a view of: traces take the same view, or the same constant, again for every use."""
    if isinstance(weight, Node) and weight.target in _VIEWS:
        return (weight.target, _origin(weight.args[0]), str(weight.args[1:]))
    if isinstance(weight, Node) and weight.op == "get_attr":
        return weight.target
    return weight


def _merge_kind(graph: Graph, kind: Kind, joined: _Joined) -> None:
    left = [node for node in graph.nodes if _kind(node) == kind]
    while left:
        first = left.pop(0)
        behind = _dependents(first)
        second = next((n for n in left if n not in behind), None)
        if second is not None:
            left.remove(second)
            _merge(graph, kind, first, second, joined)


def _merge(graph: Graph, kind: Kind, first: Node, second: Node, joined: _Joined) -> None:
    """Both products in the place of ``second``; what follows from ``first`` alone moves behind it."""
    moved = sorted(node for node in _dependents(first) if first < node < second)
    swapped = not joined.order(_operand(kind, first), _operand(kind, second))
    ordered = [second, first] if swapped else [first, second]
    stacked = _latest(graph, second, [_operand(kind, n) for n in ordered], joined)
    with graph.inserting_before(second):
        whole, finish = _product(graph, kind, ordered, stacked)
        start = 0
        for node in ordered:
            size = _shape(_operand(kind, node))[0]
            part = call(graph, aten.slice.Tensor, whole, 0, start, start + size)
            part = finish(node, part)
            start += size
            node.replace_all_uses_with(part)
    anchor = second
    for node in moved:
        anchor.append(node)
        anchor = node
    for node in (first, second):
        source = node.args[0] if node.target is operator.getitem else None
        graph.erase_node(node)
        if isinstance(source, Node) and not source.users:
            graph.erase_node(source)


def _latest(graph: Graph, second: Node, operands: list[Node], joined: _Joined) -> Node:
    """The concatenation, at ``second`` or before it: one that a sum of weight gradients made later moves up."""
    with graph.inserting_before(second):
        known = joined.known.get((operands[0], operands[1]))
        if known is not None and second < known:
            second.prepend(known)
        return joined(operands[0], operands[1])


def _product(graph: Graph, kind: Kind, nodes: list[Node], stacked: Node) -> tuple[Node, Callable[[Node, Node], Node]]:
    """The product on both batches, and what is left to do to one part of it: the bias, where the two differ."""
    example = nodes[0]
    if kind.target is aten.convolution.default:
        _, weight, bias, *rest = example.args
        shared = all(n.args[2] is bias for n in nodes)

        def finish(node: Node, part: Node) -> Node:
            own: Any = node.args[2]
            if own is None or shared:
                return part
            ones = [1] * (value_of(part).dim() - 2)
            return call(graph, aten.add.Tensor, part, call(graph, aten.view.default, own, [1, -1, *ones]))

        return call(graph, kind.target, stacked, weight, bias if shared else None, *rest), finish
    _, image, weight, *rest = example.args[0].args[:-1]  # type: ignore[union-attr]
    batch = _shape(stacked)[0]
    shape = call(graph, aten.new_empty.default, stacked, [batch, *_shape(image)[1:]])  # its values are never read
    return _backward(graph, INPUT, stacked, shape, weight, *rest), lambda _, part: part


def _operand(kind: Kind, node: Node) -> Node:
    """What is stacked: the image of a convolution, the cotangent of its input gradient."""
    source: Any = node.args[0]
    return source.args[0] if kind.target is aten.convolution_backward.default else source


# ── order ──


def _dependents(node: Node) -> set[Node]:
    """Everything that cannot be computed before it."""
    found, stack = {node}, [node]
    while stack:
        fresh = [user for user in stack.pop().users if user not in found]
        found.update(fresh)
        stack += fresh
    return found


# ── values ──


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(value_of(node).shape)


def _example(node: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape of one row, and the type."""
    return _shape(node)[1:], value_of(node).dtype
