"""Helpers for batch-first tensors, and for features: pytrees of such tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

CONSTANTS = (bool, int, float, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool, torch.dtype, torch.device)
"""Leaves that a tree may hold beside tensors: they need no gradient and have no rows."""


def flat(y: Tensor) -> Tensor:
    """(B, …) -> (B, n); one number per example, (B,), -> (B, 1)."""
    return y.flatten(1) if y.dim() > 1 else y.unsqueeze(1)


def as_rows(values: Tensor, like: Tensor) -> Tensor:
    """(B,) -> (B, 1, …), which broadcasts against ``like``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of the tree and its structure. Dataclasses are nodes: an unknown one is registered with torch."""
    if isinstance(tree, Tensor):
        return [tree], _LEAF
    leaves, structure = pytree.tree_flatten(tree)
    unknown = {type(leaf) for leaf in leaves if _is_dataclass(leaf)}
    if not unknown:
        return leaves, structure
    for kind in unknown:
        _register(kind)
    return flatten(tree)


def unflatten(leaves: Iterable[Any], structure: pytree.TreeSpec) -> Any:
    """The tree with these leaves."""
    if structure is _LEAF:
        (leaf,) = leaves
        return leaf
    return pytree.tree_unflatten(leaves, structure)


_LEAF = pytree.tree_flatten(torch.empty(0))[1]


def strangers(tree: Any) -> list[type]:
    """The types of leaves that are neither tensors nor constants: classes whose fields are not leaves."""
    return [type(leaf) for leaf in flatten(tree)[0] if not isinstance(leaf, (Tensor, *CONSTANTS))]


def tree_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply ``function`` to every tensor; other leaves are unchanged."""
    leaves, structure = flatten(tree)
    return unflatten([function(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of the tree, in a fixed order."""
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def select(tree: Any, rows: Tensor) -> Any:
    """The given rows of every tensor."""
    return tree_map(lambda leaf: leaf.index_select(0, rows), tree)


def twice(tree: Any) -> Any:
    """The batch, followed by the batch again."""
    return tree_map(lambda leaf: torch.cat([leaf, leaf]), tree)


def _is_dataclass(leaf: Any) -> bool:
    """An instance of a dataclass that is not also a module or a container."""
    own = hasattr(type(leaf), "__dataclass_fields__")
    return own and not isinstance(leaf, Tensor | nn.Module | dict | list | tuple)


def _register(kind: type) -> None:
    # Rebuilt from its fields, not by its constructor, whose __post_init__ would change them a second time.
    def names(value: Any) -> list[str]:
        return [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]

    def split(value: Any) -> tuple[list[Any], list[str]]:
        return [getattr(value, name) for name in names(value)], names(value)

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
        return [(pytree.GetAttrKey(name), getattr(value, name)) for name in names(value)], names(value)

    def join(parts: Iterable[Any], fields: list[str]) -> Any:
        value: Any = object.__new__(kind)
        for name, part in zip(fields, parts, strict=True):
            object.__setattr__(value, name, part)
        return value

    pytree.register_pytree_node(kind, split, join, flatten_with_keys_fn=with_keys)
