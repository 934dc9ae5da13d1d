"""Nodes of a traced program: new ones, their values, views and in-place operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call at the graph's insertion point; ``meta["val"]`` is what it would return."""
    node = graph.call_function(target, args, kwargs)
    with FakeTensorMode() as mode:
        node.meta["val"] = target(*_values(args, mode), **_values(kwargs, mode))
    return node


def inlined(graph: Graph, function: Callable[..., Tensor], *nodes: Node) -> Node:
    """The operations of ``function``, on the values of these nodes, at the graph's insertion point."""
    with FakeTensorMode() as mode:
        traced = make_fx(lambda *tensors: function(*tensors))(*_values(nodes, mode))
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    result = graph.graph_copy(traced.graph, dict(zip(placeholders, nodes, strict=True)))
    if not isinstance(result, Node):
        raise TypeError(f"{function} must return one tensor")
    return result


def like(value: Tensor) -> Tensor:
    """An empty tensor of the same shape, memory layout, type and device, for use in a fake mode."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _values(arguments: Any, mode: FakeTensorMode) -> Any:
    with mode:
        return pytree.tree_map(lambda a: _value(a) if isinstance(a, Node) else a, arguments)


def _value(node: Node) -> Any:
    return pytree.tree_map(lambda v: like(v) if isinstance(v, Tensor) else v, value_of(node))


def value_of(node: Any) -> Any:
    """A tensor with the shape, type and device of a node's value; the value itself for a constant of the program."""
    if "val" not in node.meta and node.op == "get_attr":
        return operator.attrgetter(node.target)(node.graph.owning_module)
    return node.meta["val"]


def is_view(node: Node) -> bool:
    """Whether the result shares the memory of an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def writes(node: Node) -> bool:
    """Whether the operation changes an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
