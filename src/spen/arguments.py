"""Constructors say at once what came, what was needed and what to write."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn


def require(value: Any, kind: type, name: str, needed: str, hint: str = "") -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``: not the class, not its name, not something else."""
    if isinstance(value, kind) and not isinstance(value, type):
        return
    meant = _meant(value, kind)
    advice = f": write {_call(meant)}" if meant is not None else f"; {hint}" if hint else ""
    raise TypeError(f"{name} must be {needed}, not {described(value)}{advice}")


def require_function(value: Any, name: str, signature: str) -> None:
    """Raise TypeError unless ``value`` can be called as ``signature``. A class is callable, but is not meant."""
    if isinstance(value, type):
        raise TypeError(
            f"{name} must be a function {signature}, not {described(value)}: give an instance, {_call(value)}"
        )
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, not {described(value)}")


def described(value: Any) -> str:
    """``the class Exact``, ``the string 'exact'``, ``a function``, ``GradientDescent``: what came, in short."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return f"the string {value!r}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}" if value.__name__ != "<lambda>" else "a lambda function"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def _meant(value: Any, kind: type) -> type | None:
    """The class that was given in the place of an instance, or named by a string."""
    if isinstance(value, type):
        return value if issubclass(value, kind) else None
    if isinstance(value, str) and kind is not nn.Module:
        wanted = value.lower().replace("_", "")
        return next((c for c in _subclasses(kind) if c.__name__.lower() == wanted), None)
    return None


def _subclasses(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _call(kind: type) -> str:
    """``Exact()``, ``GradientDescent(steps=…)``: how an instance is made."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return f"{kind.__name__}()"
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [f"{p.name}=…" for p in parameters if p.default is p.empty and p.kind in named]
    return f"{kind.__name__}({', '.join(needed)})"
