"""Results of ∇E that its products would compute again: returned by one program and taken as inputs by the other.

    g, E         = G(y)                 becomes    g, E, k_1 … k_n = G(y)
    H v, ∂⟨v, g⟩ = P(y, v)                         H v, ∂⟨v, g⟩    = P(y, v, k_1 … k_n)

P differentiates G, so it contains G's operations once more, on the same inputs. Two operations are the same *value* if
they do the same to the same values. Of the values that both programs compute, some take many operations for few bytes:
wide convolutions, matrix products, attention. Those of them that P meets first, on the way back from its results, are
kept; everything else (first layers, pointwise functions) is recomputed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from spen.gradients.compiled.fx_nodes import call, is_view, writes
from spen.gradients.compiled.simplify import part_of, simplified

aten = torch.ops.aten

DENSITY = 256.0
"""Operations for each element of a result above which it is cached: a matrix product of 128 summands."""

_SMALL = 4096  # elements of a constant that are compared one by one


def cache_results(gradient: GraphModule, product: GraphModule, density: float = DENSITY) -> int:
    """Let ``gradient`` return, and ``product`` take as further inputs, what is not to be computed twice. How many.

    The inputs of ``product`` are the point, the direction, then the further inputs of ``gradient``. A program that
    writes into tensors is left alone: its values do not follow from their operations.
    """
    for program in (gradient, product):
        if any(writes(node) for node in program.graph.nodes):
            return 0
        _forget_what_is_not_read(program)
    values = _Values()
    at, *others = gradient.graph.find_nodes(op="placeholder")
    known = values.numbered(gradient, {node: i for i, node in enumerate([at, *others])})
    at, direction, *others = product.graph.find_nodes(op="placeholder")
    roles: dict[Node, Any] = {node: i for i, node in enumerate([at, *others])}
    needed = values.numbered(product, {**roles, direction: "direction"})
    available: dict[int, Node] = {}
    for node, number in known.items():
        available.setdefault(number, node)
    kept = _first_expensive(product, needed, set(available), density)
    _return_also(gradient, [available[number] for number in kept])
    _take_also(product, [[node for node, n in needed.items() if n == number] for number in kept])
    return len(kept)


def only_cached(gradient: GraphModule, kept: int) -> GraphModule:
    """The part of a program that its last ``kept`` results need: for steps where they were not kept."""
    results: Any = gradient.graph.output_node().args[0]
    return part_of(gradient, gradient.graph.find_nodes(op="placeholder"), results[-kept:])


class _Values:
    """Numbers for values: equal for two nodes, of one graph or two, that do the same to equal values."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def numbered(self, program: GraphModule, roles: dict[Node, Any]) -> dict[Node, int]:
        found: dict[Node, int] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                key: Any = ("input", roles[node])
            elif node.op == "get_attr":
                key = _constant(getattr(program, node.target))
            elif node.op == "call_function":
                key = self._operation(node, found)
            else:
                continue
            found[node] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def _operation(self, node: Node, found: dict[Node, int]) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return object()  # dropout draws anew each time
        if source := _convolution_backward(node):
            _, image, weight, _, *options, _ = source.args
            shapes = tuple(tuple(a.meta["val"].shape) for a in (image, weight))  # type: ignore[union-attr]
            return source.target, node.args[1], shapes, _frozen((_read(node), options), found)
        return node.target, _frozen(node.args, found), _frozen(node.kwargs, found)


def _frozen(value: Any, found: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return "value", found[value]
    if isinstance(value, list | tuple):
        return "list", *(_frozen(v, found) for v in value)
    if isinstance(value, dict):
        return "dict", *((k, _frozen(v, found)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return "slice", *(_frozen(v, found) for v in (value.start, value.stop, value.step))
    return type(value), value  # 1, 1.0 and True are equal and not the same


def _constant(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor) or tensor.numel() > _SMALL:
        return "constant", id(tensor)
    return "constant", tensor.dtype, str(tensor.device), tuple(tensor.shape), tuple(tensor.flatten().tolist())


def _convolution_backward(node: Node) -> Node | None:
    """The operation that this node takes one output of. Each output costs its own work, and is a value of its own."""
    if node.target is not operator.getitem:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) and source.target is aten.convolution_backward.default else None


def _read(node: Node) -> list[Node]:
    """The nodes whose values a node needs. The gradient of an image does not depend on it, nor that of a weight."""
    source = _convolution_backward(node)
    if source is None:
        return list(node.all_input_nodes)
    cotangent, image, weight = source.args[:3]
    factors: list[Any] = [[cotangent, weight], [cotangent, image], [cotangent]]
    return factors[node.args[1]]  # type: ignore[index,no-any-return]


# ── what is worth keeping ──


def _first_expensive(product: GraphModule, needed: dict[Node, int], known: set[int], density: float) -> list[int]:
    """The values to keep, in the order of the program: the expensive ones that others of ``product`` need."""
    found: set[int] = set()
    stack = list(product.graph.output_node().all_input_nodes)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        expensive = node.op == "call_function" and _operations(node) >= density * _elements(node)
        if expensive and needed.get(node) in known and _can_be_kept(node):
            found.add(needed[node])
        else:
            stack.extend(_read(node))
    return [number for number in dict.fromkeys(needed.values()) if number in found]


def _operations(node: Node) -> int:
    """Multiplications and additions of a node, as torch.utils.flop_counter counts them; 0 for what it does not know."""
    if node.target is aten.convolution_backward.default:  # each of its results counts by itself
        return 0
    source, arguments = _convolution_backward(node) or node, node.args
    if source is not node:
        arguments = (*source.args[:-1], [i == node.args[1] for i in range(3)])
    count = flop_registry.get(getattr(source.target, "overloadpacket", None))
    if count is None:
        return 0
    arguments, options = map_arg((arguments, source.kwargs), lambda n: n.meta["val"])  # type: ignore[misc]
    return int(count(*arguments, **options, out_val=source.meta["val"]))


def _elements(node: Node) -> int:
    """Of the results together, at least 1."""
    values = node.meta.get("val")
    many = values if isinstance(values, list | tuple) else [values]
    return max(1, sum(v.numel() for v in many if isinstance(v, Tensor)))


def _can_be_kept(node: Node) -> bool:
    """Whether it is a tensor with memory of its own: a view would keep the whole tensor alive."""
    return isinstance(node.meta.get("val"), Tensor) and not is_view(node)


# ── the programs ──


def _forget_what_is_not_read(program: GraphModule) -> None:
    """Operations that take of an operand no more than its shape shall not keep its value alive."""
    for node in list(program.graph.nodes):
        if node.target is aten.ones_like.default:
            _rewrite_ones(program, node)
        elif node.target is aten.convolution_backward.default and not node.args[-1][1]:
            cotangent, image, *rest = node.args
            node.args = (cotangent, _first_alike(image), *rest)
    simplified(program)


def _rewrite_ones(program: GraphModule, node: Node) -> None:
    # Where a gradient begins, at the sum of the energies: without this, P would sum them up for nothing.
    value = node.meta["val"]
    if not value.is_contiguous():
        return
    with program.graph.inserting_before(node):
        ones = call(program.graph, aten.full.default, list(value.shape), 1, dtype=value.dtype, device=value.device)
    node.replace_all_uses_with(ones)


def _first_alike(node: Node) -> Node:
    """The earliest node, on the way to this one, with its shape and layout."""
    wanted, best, stack, seen = _layout(node), node, [node], {node}
    while stack:
        for parent in _read(stack.pop()):
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
                if _layout(parent) == wanted and parent < best:
                    best = parent
    return best


def _layout(node: Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _return_also(program: GraphModule, nodes: list[Node]) -> None:
    output = program.graph.output_node()
    output.args = ([*output.args[0], *nodes],)  # type: ignore[misc]
    program.recompile()


def _take_also(program: GraphModule, groups: list[list[Node]]) -> None:
    after = program.graph.find_nodes(op="placeholder")[-1]
    for i, nodes in enumerate(groups):
        with program.graph.inserting_after(after):
            after = program.graph.placeholder(f"kept_{i}")
        after.meta["val"] = nodes[0].meta["val"]
        for node in nodes:
            node.replace_all_uses_with(after)
    simplified(program)
