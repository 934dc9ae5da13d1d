"""Parsing of values on the command line: devices, sizes, KEY=VALUE pairs, lists."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def changed(recipe: T, settings: Mapping[str, str], *, name: str = "", fixed: Collection[str] = ()) -> T:
    """A dataclass with fields replaced by parsed texts; ``fixed`` fields cannot be changed."""
    hints = {f.name: get_type_hints(type(recipe))[f.name] for f in fields(recipe) if f.name not in fixed}  # type: ignore[arg-type]
    values = {}
    for key, text in settings.items():
        if key not in hints:
            called = name or getattr(recipe, "name", type(recipe).__name__)
            raise ValueError(f"recipe {called} has no option {key!r}; it has {', '.join(hints)}")
        values[key] = parse_value(hints[key], key, text)
    return replace(recipe, **values)  # type: ignore[type-var]


def parse_value(kind: Any, key: str, text: str) -> Any:
    """The text as a value of the type ``kind``; ``key`` is its name in error messages."""
    wanted, parse = _PARSERS.get(kind, (None, None))
    if get_origin(kind) in (Union, types.UnionType):
        others = [k for k in get_args(kind) if k is not type(None)]
        if text == "none" and type(None) in get_args(kind):
            return None
        kind = others[0]
        wanted, parse = _PARSERS.get(kind, (None, None))
        wanted = f"{wanted} or none"
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        wanted, parse = f"one of {', '.join(map(str, choices))}", {str(c): c for c in choices}.__getitem__
    elif get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        separator = "x" if inner is int else "+"
        wanted = f"{'whole numbers' if inner is int else 'words'} with {separator} between them"
        # Words may be none at all; a number that is missing between two x is a mistake.
        parse = lambda text: tuple(inner(part) for part in text.split(separator) if part or inner is int)  # noqa: E731
    if parse is None:
        raise ValueError(f"{key} cannot be changed by --set")
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ValueError(f"{key} is {wanted}, not {text!r}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


_PARSERS: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", {"true": True, "false": False}.__getitem__),
    int: ("a whole number", int),
    float: ("a finite number", _finite),
    str: ("a text", str),
}


def parse_settings(options: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE pairs of --set."""
    settings = {}
    for option in options:
        key, equals, value = option.rpartition("=") if ":" in option.partition("=")[0] else option.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes KEY=VALUE, not {option!r}")
        settings[key.strip()] = value.strip()
    return settings


def parse_seeds(text: str) -> tuple[int, ...]:
    """``3`` is 0, 1, 2; a list with commas gives the seeds themselves: ``0,2,5``, or ``5,`` for one seed."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts) or (("," not in text) and int(parts[0]) < 1):
        raise ValueError(f"--seeds takes how many, as 3, or which, as 0,2,5; not {text!r}")
    return tuple(int(part) for part in parts) if "," in text else tuple(range(int(parts[0])))


def image_size(text: str) -> tuple[int, int]:
    """``96x128``: height and width in pixels."""
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None or min(int(match[1]), int(match[2])) < 8:
        raise ValueError(f"it is HxW in pixels, 8x8 or more, as 96x128, not {text!r}")
    return int(match[1]), int(match[2])


def resolve_device(device: str) -> str:
    """``auto`` is the GPU if there is one."""
    if device == "cpu":
        return device
    import torch

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise ValueError("there is no cuda here that torch can use; leave the option away to run on the CPU")
    return "cuda" if there else "cpu"
