"""Checks of constructor arguments, and the repr of objects by their constructor call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn


def require(value: Any, kind: type, name: str, needed: str, hint: str = "") -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``: not the class, not its name, not something else."""
    if isinstance(value, kind) and not isinstance(value, type):
        return
    meant = _intended_class(value, kind)
    advice = f": write {_call(meant)}" if meant is not None else f"; {hint}" if hint else ""
    raise TypeError(f"{name} must be {needed}, not {described(value)}{advice}")


def require_function(value: Any, name: str, signature: str) -> None:
    """Raise TypeError unless ``value`` is callable as ``signature``. A class is callable, but refused."""
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


def _intended_class(value: Any, kind: type) -> type | None:
    """The class whose instance is probably meant: the value is that class, or its name as a string."""
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


def as_called(thing: object) -> str:
    """The constructor call, without arguments at their default: ``EndToEnd(loss=squared_error, weights='last')``.

    The values are read from the attributes with the names of the arguments; an argument without one is left out.
    """
    parts = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        value = getattr(thing, name, parameter.default)
        plain = isinstance(value, bool | int | float | str | tuple) and type(value) is type(parameter.default)
        if value is not parameter.default and not (plain and value == parameter.default):
            parts.append(f"{name}={value.__qualname__ if inspect.isroutine(value) else repr(value)}")
    return f"{type(thing).__name__}({', '.join(parts)})"
