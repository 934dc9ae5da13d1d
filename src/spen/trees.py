"""Features are pytrees of batch-first tensors: the few things the core does to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

CONSTANTS = (bool, int, float, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool, torch.dtype, torch.device)
"""What a tree may hold beside tensors: nothing a gradient would have to reach, and no rows to select."""


def strangers(tree: Any) -> list[type]:
    """The types of leaves that are neither tensors nor constants: a class that the tree does not look into."""
    return [type(leaf) for leaf in pytree.tree_leaves(tree) if not isinstance(leaf, (Tensor, *CONSTANTS))]


def tree_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply ``function`` to every tensor; leave everything else as it is."""
    return pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of the tree, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def select(tree: Any, rows: Tensor) -> Any:
    """The given examples of every tensor."""
    return tree_map(lambda leaf: leaf.index_select(0, rows), tree)


def twice(tree: Any) -> Any:
    """Every example two times: the whole batch, then the whole batch again."""
    return tree_map(lambda leaf: torch.cat([leaf, leaf]), tree)
