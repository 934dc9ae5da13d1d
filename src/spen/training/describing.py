"""Objects as JSON, so that two runs can be compared option by option."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import sys
import types
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spen.parameters import Positive

LIBRARIES = {*sys.stdlib_module_names, "lightning", "numpy", "pytorch_lightning", "spen", "torch", "torchmetrics"}
"""Code of these changes with their version only; code of all others is compared by a hash."""

_DEEPEST = 12
_LONGEST = 64
_SHOWN = 6
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, PurePath, Enum)


def described(value: Any, *, _inside: tuple[int, ...] = ()) -> Any:
    """What ``value`` is, as JSON: numbers and strings as they are, an object by its class and its options.

    An option is an attribute named like an argument of the constructor (``loss`` or ``_loss`` for ``loss=``). Where
    an argument is not found under its name, all public attributes that are numbers, strings or functions count too.
    A function is its name and, unless a library defines it, a hash of its code and of the values that it reads.
    """
    if isinstance(value, _SIMPLE):
        return _simple(value)
    if id(value) in _inside or len(_inside) > _DEEPEST:
        return _name(type(value))
    inner = functools.partial(described, _inside=(*_inside, id(value)))
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value))
    if isinstance(value, Mapping):
        return _short({str(key): inner(item) for key, item in value.items()})
    if isinstance(value, Set):
        return _short(sorted((inner(item) for item in value), key=repr))
    if isinstance(value, list | tuple):
        return _short([inner(item) for item in value])
    if isinstance(value, functools.partial):
        return {"partial": inner(value.func), "arguments": inner(value.args), "keywords": inner(value.keywords)}
    if isinstance(value, types.MethodType):
        return {"method": inner(value.__func__), "of": inner(value.__self__)}
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, type):
        return _class(value)
    if inspect.isroutine(value):
        return getattr(value, "__qualname__", str(value))
    if isinstance(value, nn.Module):
        return describe_module(value, values=True)
    return _plain({"class": _class(type(value)), **options(value, inner)})


def options(value: object, inner: Any = described) -> dict[str, Any]:
    """The options that an object was made with, by name."""
    if is_dataclass(value):
        return {f.name: inner(getattr(value, f.name)) for f in fields(value)}
    held = getattr(value, "__dict__", {})
    found: dict[str, Any] = {}
    complete = True
    for name in _arguments(type(value)):
        attribute = next((a for a in (name, f"_{name}") if a in held), None)
        if attribute is not None:
            found[name] = held[attribute]
        elif name in getattr(value, "_modules", ()) or name in getattr(value, "_parameters", ()):
            continue  # described with the module
        else:
            complete = False
    if not complete:
        found |= {k: v for k, v in held.items() if not k.startswith("_") and k != "training" and _is_simple(v)}
    return {name: inner(found[name]) for name in sorted(found)}


def describe_module(module: nn.Module, *, values: bool) -> dict[str, Any]:
    """Class and options of every submodule; names, shapes and types of parameters and buffers.

    With ``values`` the numbers in the buffers count too. Those in parameters never do: training changes them.
    """
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        found[name or "(whole)"] = _part(part, module)
    for name, parameter in module.named_parameters():
        found[name] = "a parameter without a shape yet" if is_lazy(parameter) else f"parameter, {_shape(parameter)}"
    for name, buffer in module.named_buffers():
        if not isinstance(module.get_submodule(name.rpartition(".")[0]), Positive):
            found[name] = f"buffer, {digest(buffer) if values and not is_lazy(buffer) else _shape(buffer)}"
    return found


def _part(part: nn.Module, whole: nn.Module) -> Any:
    if isinstance(part, Positive):  # its repr shows what it has learned
        return {"class": "Positive", "learned": part.learned} | (
            {} if part.learned else {"values": described(part.log.detach().double().exp().flatten().tolist())}
        )
    if isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return _class(type(part))
    about = {"class": _class(type(part))}
    if _is_library(type(part), "torch"):
        return _plain(about | ({"options": part.extra_repr()} if part.extra_repr() else {}))
    known = {id(p) for p in whole.modules()} - {id(part)}

    def inner(value: Any) -> Any:
        return _name(type(value)) if id(value) in known else described(value, _inside=(id(part),))

    return _plain(about | options(part, inner))


def digest(tensor: Tensor) -> str:
    """Type, shape and a checksum of the numbers; the same on every device."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        whole = tensor.coalesce()
        return f"sparse {_shape(whole)} {_checksum(whole.indices()):016x}{_checksum(whole.values()):016x}"
    if tensor.layout != torch.strided:
        return f"{tensor.layout} {_shape(tensor)}"
    return f"{_shape(tensor)} {_checksum(tensor):016x}"


def hashed(value: Any) -> str:
    """A short hash of something described."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def in_words(known: dict[str, Any], asked: dict[str, Any]) -> str:
    """What two descriptions differ in, with both values; empty where they are equal."""
    found: list[str] = []
    whole: list[str] = []  # what is missing on one side, with all that belongs to it
    for name, old, new in _differences(known, asked):
        if not name.startswith(tuple(whole)):
            found.append(f"{name}: {_cut(old)} there, {_cut(new)} now")
        if old is None or new is None:
            whole.append(f"{name}.")
    rest = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join([*found[:_SHOWN], *rest])


def _cut(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:100]} … ({hashed(value)})"


def _differences(known: Any, asked: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, value there, value now) of whatever two descriptions differ in."""
    if isinstance(known, dict) and isinstance(asked, dict):
        for key in [*known, *(k for k in asked if k not in known)]:
            yield from _differences(known.get(key), asked.get(key), f"{where}.{key}" if where else key)
    elif known != asked:
        yield where, known, asked


def _checksum(tensor: Tensor, block: int = 2**20) -> int:
    """Σ word·weight over the bytes as 64-bit words, modulo 2⁶⁴; the weight is another for every place."""
    flat = tensor.contiguous().view(-1).resolve_conj().resolve_neg()
    data = torch.view_as_real(flat).view(-1).view(torch.uint8) if flat.is_complex() else flat.view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    weights = torch.arange(1, block + 1, dtype=torch.int64, device=data.device) * -0x61C8864680B583EB
    weights = weights ^ (weights >> 29) | 1
    for number, start in enumerate(range(0, data.numel(), 8 * block)):
        part = data[start : start + 8 * block]
        if part.numel() % 8:
            part = torch.cat([part, part.new_zeros(-part.numel() % 8)])
        words = part.clone().view(torch.int64)
        total += (words * weights[: len(words)]).sum() * (2 * number + 1)
    return int(total) & 0xFFFFFFFFFFFFFFFF


def _array(array: Any) -> Any:
    try:
        return digest(torch.from_numpy(np.ascontiguousarray(array)))
    except TypeError:  # strings or objects
        return f"{array.dtype} {array.shape} {hashed(repr(array.tolist()))}"


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _function(function: types.FunctionType) -> Any:
    name = function.__qualname__
    lambdas = "<" in name  # a lambda, or a function within another: the name does not tell which
    if _is_library(function) and not lambdas:
        return name
    return {"function": name, "code": hashed(_read(function, set()))}


def _read(function: types.FunctionType, seen: set[int]) -> Any:
    """The code of a function and whatever plain values and functions it reads, as JSON."""
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))

    def value(item: Any) -> Any:
        if isinstance(item, types.FunctionType):
            return item.__qualname__ if _is_library(item) and "<" not in item.__qualname__ else _read(item, seen)
        if isinstance(item, Tensor) or _is_simple(item):
            return described(item)
        return _name(type(item))

    code = function.__code__
    named = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return {
        "code": _code(code, function.__doc__),
        "defaults": [value(v) for v in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())],
        "closure": {name: value(cell.cell_contents) for name, cell in cells.items() if _filled(cell)},
        "globals": {name: value(item) for name, item in sorted(named.items()) if not isinstance(item, type)},
    }


def _filled(cell: Any) -> bool:
    try:
        return not isinstance(cell.cell_contents, type)
    except ValueError:
        return False


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(_names(c) for c in inner))


def _code(code: types.CodeType, doc: str | None = None) -> list[Any]:
    constants = [_constant(c) for c in code.co_consts if doc is None or c != doc]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames), list(code.co_freevars)]


def _constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _code(constant)
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return [_constant(c) for c in constant] if isinstance(constant, tuple) else repr(constant)


def _class(kind: type) -> str:
    """The name and, unless a library defines it, a hash of its methods."""
    own = [k for k in kind.__mro__ if not _is_library(k)]
    parts = [_read(f, set()) for k in own for f in _methods(k)]
    values = [
        [n, described(v)] for k in own for n, v in sorted(vars(k).items()) if not n.startswith("_") and _is_simple(v)
    ]
    return f"{_name(kind)} (code {hashed([parts, values])})" if own else _name(kind)


def _methods(kind: type) -> Iterator[types.FunctionType]:
    for name, item in sorted(vars(kind).items()):
        function = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        if isinstance(function, types.FunctionType) and name not in ("__repr__", "extra_repr"):
            yield function


def _name(kind: type) -> str:
    return kind.__qualname__


def _is_library(thing: Any, *names: str) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] in (names or LIBRARIES)


def _arguments(kind: type) -> list[str]:
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in plain if name not in ("device", "dtype")]


def _is_simple(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_simple(v) for v in value)
    return isinstance(value, (*_SIMPLE, types.FunctionType, functools.partial))


def _simple(value: Any) -> Any:
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _short(value: Any) -> Any:
    return value if len(value) <= _LONGEST else f"{len(value)} items, {hashed(value)}"


def _plain(about: dict[str, Any]) -> Any:
    return about["class"] if len(about) == 1 else about
