"""A strategy from its text: ``strategy_of("Compiled(Checkpointed(), keep=1)")``."""

from __future__ import annotations

import ast
from typing import Any

import torch

from spen.gradients.checkpointed import Checkpointed
from spen.gradients.compiled import Compiled
from spen.gradients.exact import Exact
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.protocols import GradientStrategy

_NAMES = {c.__name__: c for c in (Checkpointed, Compiled, Exact, FiniteDifference, ForwardOverReverse)}
_TYPES = {"torch.bfloat16": torch.bfloat16}


def strategy_of(text: str) -> GradientStrategy:
    """The strategy that prints itself like this. Calls of strategies and constants are read, nothing is evaluated."""
    try:
        found = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is no strategy of {', '.join(_NAMES)}: {error}") from None
    if not isinstance(found, GradientStrategy):
        raise ValueError(f"{text!r} is no strategy of {', '.join(_NAMES)}")
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        arguments = [_value(a) for a in node.args]
        return _NAMES[node.func.id](*arguments, **{k.arg or "": _value(k.value) for k in node.keywords})
    if isinstance(node, ast.Attribute):
        return _TYPES[ast.unparse(node)]
    return ast.literal_eval(node)
