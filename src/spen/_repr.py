"""How a part of the library prints itself."""

from __future__ import annotations

import inspect
from typing import Any


def as_called(thing: object) -> str:
    """The call that would make it: ``EndToEnd(loss=squared_error, weights='last')``, without what was left alone.

    It reads the attributes named like the arguments; one that is not kept under its name is left out.
    """
    parts = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        if not hasattr(thing, name):
            continue
        value = getattr(thing, name)
        if value is not parameter.default and not _same(value, parameter.default):
            parts.append(f"{name}={_short(value)}")
    return f"{type(thing).__name__}({', '.join(parts)})"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, bool | int | float | str | tuple) and a == b


def _short(value: Any) -> str:
    """A function by its name, anything else as it prints itself."""
    return value.__qualname__ if inspect.isroutine(value) else repr(value)
