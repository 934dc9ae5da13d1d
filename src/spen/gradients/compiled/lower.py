"""From a traced program to fast kernels: layout, precision, fusion."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from spen.gradients.compiled.convolutions import (
    FORWARD,
    INPUT,
    WEIGHT,
    WIDE,
    Convolution,
    Implementation,
    implementations,
)
from spen.gradients.compiled.cpu import for_cpu
from spen.gradients.compiled.fx_nodes import inlined, value_of
from spen.gradients.compiled.pairing import paired, separate
from spen.gradients.compiled.pointwise import without_narrow_products
from spen.gradients.compiled.trace import Flat

aten = torch.ops.aten


@dataclass(frozen=True)
class Passes:
    """What lowering may change for speed beside layout and precision; results stay the same up to rounding.

    ``pairs`` merges convolutions of primal and tangent by one weight; ``pointwise`` writes 1×1 convolutions from or to
    one channel as products and sums, which fuse; ``turned`` lets a convolution run as an input gradient and the
    reverse; ``kernels`` lets our own kernels compete with cuDNN's. Layout and kernels are chosen by measurement on a
    GPU, unless ``layout`` or ``prefer`` (how a kernel's name begins) is given.
    """

    pairs: bool = True
    pointwise: bool = True
    turned: bool = True
    kernels: bool = True
    layout: torch.memory_format | None = None
    prefer: str | None = None


def lowered(
    program: GraphModule,
    inputs: list[Tensor],
    *,
    fuse: bool,
    precision: torch.dtype | None,
    passes: Passes | None = None,
) -> Flat:
    """The program as a function of tensors like ``inputs``.

    ``fuse`` compiles it by torch.compile's backend (the program is traced already), with wide convolutions in
    channels-last layout. ``precision`` is the type that the operands of wide convolutions and matrix products are
    rounded to; sums stay in the type of the inputs, and so do the narrow layers, the image among them, where rounding
    would cost the most. ``passes`` rearranges the products first. If it is not given, fused programs on a GPU get
    ``Passes()``, and programs on a CPU that are neither fused nor rounded the rewrites of ``for_cpu``.
    """
    if passes is None and not fuse and precision is None and not inputs[0].is_cuda:
        return for_cpu(program)
    if passes is None and fuse and inputs[0].is_cuda:
        passes = Passes()
    if passes is not None:
        _rearrange(program, precision, passes, inputs[0].device)
    elif fuse or precision is not None:
        _rewrite(program, precision, torch.channels_last)
    if not fuse:
        return program
    import torch._inductor as inductor  # takes seconds

    # Inductor stores what it compiled on disk only where a shape environment is known; the shapes stay constants.
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(mode)):
        fakes: list[Any] = [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]
        return inductor.compile(program, fakes)  # type: ignore[return-value]


# ── products by the fastest implementation ──


def _rearrange(program: GraphModule, precision: torch.dtype | None, passes: Passes, device: torch.device) -> None:
    if passes.pointwise:
        without_narrow_products(program)
    if passes.pairs:
        paired(program)
    separate(program.graph)
    products = {node: found for node in program.graph.nodes if (found := _product(node)) is not None}
    layout, chosen = _chosen(products, precision, passes, device)
    for node, product in products.items():
        first, second = _operands(node, product)
        with program.graph.inserting_before(node):
            result = inlined(program.graph, chosen[product], first, second)
            if product.kind == FORWARD and node.args[2] is not None:  # added in full precision, fused with what follows
                result = inlined(program.graph, _plus_bias, result, node.args[2])  # type: ignore[arg-type]
        node.replace_all_uses_with(result)
        program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    _rewrite(program, precision, layout)  # what is left: strides, groups


def _chosen(
    products: dict[Node, Convolution], precision: torch.dtype | None, passes: Passes, device: torch.device
) -> tuple[torch.memory_format, dict[Convolution, Implementation]]:
    """One layout for the whole program, the one in which the best implementations take the least time in all."""
    layouts = (torch.channels_last, torch.contiguous_format) if passes.layout is None else (passes.layout,)
    if device.type == "cuda" and passes.prefer is None:
        from spen.gradients.compiled.choose import compile_kernels

        cases = itertools.product(products.values(), layouts)
        wanted = [(p, _implementations(p, layout, precision, passes), layout) for p, layout in cases]
        compile_kernels(wanted, device, precision)
    plans = [_plan(list(products.values()), layout, precision, passes, device) for layout in layouts]
    best = min(range(len(plans)), key=lambda i: plans[i][0])
    return layouts[best], plans[best][1]


def _plan(
    products: list[Convolution],
    layout: torch.memory_format,
    precision: torch.dtype | None,
    passes: Passes,
    device: torch.device,
) -> tuple[float, dict[Convolution, Implementation]]:
    """(seconds of all products, the implementation of each)."""
    total, chosen = 0.0, {}
    for product in products:
        found = _implementations(product, layout, precision, passes)
        name = next((n for n in found if passes.prefer is not None and n.startswith(passes.prefer)), None)
        if name is None and device.type == "cuda" and passes.prefer is None:
            from spen.gradients.compiled.choose import times

            measured = times(product, found, device, layout, precision)
            name = min(measured, key=lambda n: measured[n])
            total += measured[name]
        chosen[product] = found[name or "cudnn"]
    return total, chosen


def _implementations(
    product: Convolution, layout: torch.memory_format, precision: torch.dtype | None, passes: Passes
) -> dict[str, Implementation]:
    return implementations(product, layout, precision, turned=passes.turned, kernels=passes.kernels)


def _product(node: Node) -> Convolution | None:
    """The product that a node computes, if there are implementations of it; a gradient is known by its getitem."""
    source: Any = node
    kind = FORWARD
    if node.target is operator.getitem:
        source, index = node.args
        kind = INPUT if index == 0 else WEIGHT
    backward = source.target is aten.convolution_backward.default
    if not (source.target is aten.convolution.default or (backward and kind != FORWARD)):
        return None
    *_, stride, padding, dilation, transposed, _, groups = source.args[:-1] if backward else source.args
    weight = value_of(source.args[2 if backward else 1])
    values = [value_of(a) for a in _ends(source, kind)]
    plain = list(stride) == [1, 1] and not transposed and groups == 1 and weight.dim() == 4
    if not plain or any(v.dtype is not torch.float32 or v.dim() != 4 for v in (*values, weight)):
        return None
    pair = [tuple(padding) * (2 // len(padding)), tuple(dilation) * (2 // len(dilation))]
    shapes = [tuple(v.shape) for v in values]
    product = Convolution(kind, shapes[0], shapes[1], tuple(weight.shape[2:]), pair[0], pair[1])  # type: ignore[arg-type]
    return product if product.wide or (product.narrow and product.proved) else None


def _ends(source: Node, kind: str) -> list[Any]:
    """The two operands of a product, in the order of ``Convolution``."""
    if kind == FORWARD:
        return [source.args[0], source.args[1]]
    return [source.args[0], source.args[2 if kind == INPUT else 1]]


def _operands(node: Node, product: Convolution) -> list[Any]:
    return _ends(node if product.kind == FORWARD else node.args[0], product.kind)  # type: ignore[arg-type]


def _plus_bias(result: Tensor, bias: Tensor) -> Tensor:
    return result + bias.view(1, -1, 1, 1)


# ── every other product, in one layout ──


def _rewrite(program: GraphModule, precision: torch.dtype | None, layout: torch.memory_format) -> None:
    graph = program.graph
    for node in list(graph.nodes):
        if node.target is aten.view.default:
            node.target = aten.reshape.default  # what was one piece of memory may not be in another layout
        elif node.target is aten.convolution.default and _wide(node.args[1]) and value_of(node.args[0]).dim() == 4:
            _rewrite_convolution(graph, node, precision, layout)
        elif node.target is aten.convolution_backward.default and _wide(node.args[2]) and _is_plane(node.args[1]):
            _rewrite_backward(graph, node, precision, layout)
        elif precision is not None and node.target in (aten.mm.default, aten.bmm.default):
            _rewrite_product(graph, node, precision)
        elif precision is not None and node.target is aten.addmm.default and not node.kwargs:
            _rewrite_product(graph, _without_bias(graph, node), precision)
    graph.eliminate_dead_code()
    program.recompile()


def _wide(weight: Any) -> bool:
    value = value_of(weight)
    return value.dim() == 4 and min(value.shape[:2]) >= WIDE and value.dtype is torch.float32


def _is_plane(image: Any) -> bool:
    return value_of(image).dim() == 4


def _prepared(graph: Graph, node: Any, precision: torch.dtype | None, layout: torch.memory_format) -> Node:
    if precision is None:
        return graph.call_function(aten.clone.default, (node,), {"memory_format": layout})
    return graph.call_function(aten._to_copy.default, (node,), {"dtype": precision, "memory_format": layout})


def _restored(graph: Graph, node: Node, precision: torch.dtype | None) -> Node:
    if precision is None:
        return node
    return graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32})


def _rewrite_convolution(graph: Graph, node: Node, precision: torch.dtype | None, layout: torch.memory_format) -> None:
    image, weight, bias, *rest = node.args
    with graph.inserting_before(node):
        operands = [_prepared(graph, a, precision, layout) for a in (image, weight)]
        result = graph.call_function(aten.convolution.default, (*operands, None, *rest))
        result = _restored(graph, result, precision)
        if bias is not None:  # added in full precision, and fused with what follows
            result = graph.call_function(
                aten.add.Tensor, (result, graph.call_function(aten.view.default, (bias, [1, -1, 1, 1])))
            )
    result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _rewrite_backward(graph: Graph, node: Node, precision: torch.dtype | None, layout: torch.memory_format) -> None:
    cotangent, image, weight, _, *rest, mask = node.args
    with graph.inserting_before(node):
        operands = [_prepared(graph, a, precision, layout) for a in (cotangent, image, weight)]
        both = [*mask[:2], False]  # type: ignore[index,misc]
        result = graph.call_function(aten.convolution_backward.default, (*operands, None, *rest, both))
    for user in list(node.users):
        index = user.args[1]
        with graph.inserting_before(user):
            if index == 2:
                part = graph.call_function(aten.sum.dim_IntList, (cotangent, [0, 2, 3]))
            else:
                part = _restored(graph, graph.call_function(operator.getitem, (result, index)), precision)
        part.meta["val"] = user.meta["val"]
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)


def _without_bias(graph: Graph, node: Node) -> Node:
    """The product of an addmm, to which the bias is then added in full precision."""
    bias, a, b = node.args
    with graph.inserting_before(node):
        product = graph.call_function(aten.mm.default, (a, b))
        result = graph.call_function(aten.add.Tensor, (product, bias))
    product.meta["val"] = result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return product


def _rewrite_product(graph: Graph, node: Node, precision: torch.dtype) -> None:
    values = [value_of(a) for a in node.args]  # type: ignore[union-attr]
    if any(v.dtype is not torch.float32 or min(v.shape[-2:]) < WIDE for v in values):
        return
    with graph.inserting_before(node):
        operands = [graph.call_function(aten._to_copy.default, (a,), {"dtype": precision}) for a in node.args]
        result = graph.call_function(node.target, tuple(operands))  # type: ignore[arg-type]
        result = _restored(graph, result, precision)
    result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
