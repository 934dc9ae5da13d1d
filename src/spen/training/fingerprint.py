"""What decides the result of a run, as JSON: two runs with equal fingerprints end with the same weights."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from spen.energies import Scaled
from spen.model import SPEN
from spen.parameters import Positive
from spen.storage import check_storable
from spen.training.sources import Source
from spen.training.stages import Stage

LIBRARIES = {*sys.stdlib_module_names, "lightning", "numpy", "pytorch_lightning", "spen", "torch", "torchmetrics"}
"""Code of these changes with their version only; code of all others is compared by a hash."""

_MAX_DEPTH = 12
_MAX_ITEMS = 64
_MAX_DIFFERENCES = 6
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, PurePath, Enum)


def fingerprint(
    model: SPEN,
    stages: Sequence[Stage],
    train: Source,
    dev: Source,
    metric: Metric,
    devices: int,
    precision: str = "32-true",
    higher_is_better: bool | None = None,
) -> dict[str, Any]:
    """Stages, objectives, model, data and metric by name. The seed and the recipe are in run.json.

    The values of parameters are not part of it, because training changes them.
    """
    parts = {name: getattr(model, name) for name in ("features", "init", "energy")}
    return {
        "stages": ", ".join(stage.name for stage in stages),
        "stage": {stage.name: options(stage) for stage in stages},
        **{name: describe_module(part, values=False) for name, part in parts.items()},
        "minimizer": describe_module(model.minimizer, values=True),
        "train": _source(train),
        "dev": _source(dev),
        "metric": describe(type(metric)),
        "metric options": options(metric),
        "devices": devices,
        **({} if precision == "32-true" else {"precision": precision}),
        **({} if higher_is_better is None else {"higher_is_better": higher_is_better}),
    }


def hash_weights(model: SPEN) -> str:
    """A hash of the parameters and buffers, which a file can hold."""
    weights = model.state_dict()
    check_storable(weights)
    return _hash({name: digest(value) for name, value in weights.items()})


def differences(known: dict[str, Any], now: dict[str, Any]) -> str:
    """Where two descriptions differ, with both values; empty if they are equal."""
    found: list[str] = []
    missing: tuple[str, ...] = ()  # names that only one side has: the names below them are not listed
    for name, old, new in _compare(known, now):
        if not name.startswith(missing):
            found.append(f"{name}: {_shorten(old)} there, {_shorten(new)} now")
        if old is None or new is None:
            missing = (*missing, f"{name}.")
    more = [f"and {len(found) - _MAX_DIFFERENCES} more"] if len(found) > _MAX_DIFFERENCES else []
    return "; ".join([*found[:_MAX_DIFFERENCES], *more])


def describe(value: Any, *, _inside: tuple[int, ...] = ()) -> Any:
    """``value`` as JSON: numbers and strings unchanged, an object by its class and its options.

    An option is an attribute named like an argument of the constructor (``loss`` or ``_loss`` for ``loss=``). If an
    argument is not found under its name, all public attributes that are numbers, strings or functions count too.
    A function is its name and, unless a library defines it, a hash of its code and of the values that it reads.
    """
    if isinstance(value, _SIMPLE):
        return _simple(value)
    if id(value) in _inside or len(_inside) > _MAX_DEPTH:
        return type(value).__qualname__
    inner = functools.partial(describe, _inside=(*_inside, id(value)))
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value))
    if isinstance(value, Mapping):
        return _limit({str(key): inner(item) for key, item in value.items()})
    if isinstance(value, Set):
        return _limit(sorted((inner(item) for item in value), key=repr))
    if isinstance(value, list | tuple):
        return _limit([inner(item) for item in value])
    if isinstance(value, functools.partial):
        return {"partial": inner(value.func), "arguments": inner(value.args), "keywords": inner(value.keywords)}
    if isinstance(value, types.MethodType):
        return {"method": inner(value.__func__), "of": inner(value.__self__)}
    if isinstance(value, types.FunctionType):
        name = value.__qualname__
        return name if _is_known(value) else {"function": name, "code": _hash(_code_of(value, set()))}
    if isinstance(value, type):
        return _class(value)
    if inspect.isroutine(value):
        return getattr(value, "__qualname__", str(value))
    if isinstance(value, nn.Module):
        return describe_module(value, values=True)
    return _with_options(type(value), options(value, inner))


def options(value: object, inner: Any = describe) -> dict[str, Any]:
    """The options that an object was made with, by name."""
    if is_dataclass(value):
        return {f.name: inner(getattr(value, f.name)) for f in fields(value)}
    attributes = getattr(value, "__dict__", {})
    found: dict[str, Any] = {}
    complete = True
    for name, many in _arguments(type(value)):
        attribute = next((a for a in (name, f"_{name}") if a in attributes), None)
        if attribute is not None:
            found[name] = attributes[attribute]
        elif not many and name not in getattr(value, "_modules", ()) and name not in getattr(value, "_parameters", ()):
            complete = False  # modules and parameters are described by describe_module
    if not complete:
        found |= {k: v for k, v in attributes.items() if k[0] != "_" and k != "training" and _is_simple(v)}
    return {name: inner(found[name]) for name in sorted(found)}


def describe_module(module: nn.Module, *, values: bool) -> dict[str, Any]:
    """Class and options of every submodule; names, shapes and types of parameters and buffers.

    With ``values`` the numbers in the buffers count too; that of a fixed weight always does. Those in parameters never
    do: training changes them.
    """
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        found[name or "(whole)"] = _submodule(part, module)
    for name, parameter in module.named_parameters():
        shape = "a parameter without a shape yet" if is_lazy(parameter) else f"parameter, {_shape(parameter)}"
        found[name] = shape if parameter.requires_grad else f"{shape}, not trained"
    for name, buffer in module.named_buffers():
        owner = module.get_submodule(name.rpartition(".")[0])
        if not isinstance(owner, Positive):
            counts = (values or isinstance(owner, Scaled)) and not is_lazy(buffer)
            found[name] = f"buffer, {digest(buffer) if counts else _shape(buffer)}"
    return found


def digest(tensor: Tensor) -> str:
    """Type, shape and a checksum of the numbers; the same on every device."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return f"sparse {_shape(tensor)} {_checksum(tensor.indices()):016x}{_checksum(tensor.values()):016x}"
    if tensor.layout != torch.strided:
        return f"{tensor.layout} {_shape(tensor)}"
    return f"{_shape(tensor)} {_checksum(tensor):016x}"


def _source(source: Source) -> Any:
    """What the source returns from ``fingerprint()``, or its ``name``; else its class and the numbers it was given."""
    own = getattr(source, "fingerprint", None)
    if callable(own):
        return describe(own())
    name = getattr(source, "name", None)
    if isinstance(name, str):
        return name
    plain = options(source, lambda value: value if isinstance(value, bool | int | float | str) else None)
    return {"class": describe(type(source)), "batches": source.count(1), **plain}


def _submodule(part: nn.Module, whole: nn.Module) -> Any:
    if isinstance(part, Positive):
        values = {} if part.learned else {"values": describe(part.log.detach().double().exp().flatten().tolist())}
        return {"class": "Positive", "learned": part.learned, **values}
    mode = {"training": False} if whole.training and not part.training else {}  # fit leaves it so
    if isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return _with_options(type(part), mode)
    if _package(type(part)) == "torch":
        return _with_options(type(part), {**_of_torch(part), **mode})
    others = {id(p) for p in whole.modules()} - {id(part)}  # described under their own names

    def inner(value: Any) -> Any:
        return type(value).__qualname__ if id(value) in others else describe(value, _inside=(id(part),))

    return _with_options(type(part), {**options(part, inner), **mode})


def _of_torch(part: nn.Module) -> dict[str, Any]:
    """The options of a layer or loss of torch. Some have no ``extra_repr``: attention, losses, recurrent nets."""
    plain = (bool, int, float, str, tuple, types.FunctionType, types.BuiltinFunctionType)
    own = {n: v for n, v in vars(part).items() if isinstance(v, plain) and not n.startswith("_") and n != "training"}
    text = {"options": part.extra_repr()} if part.extra_repr() else {}
    return {**text, **{name: describe(value) for name, value in own.items()}}


def _with_options(kind: type, found: dict[str, Any]) -> Any:
    return {"class": _class(kind), **found} if found else _class(kind)


def _compare(known: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, known value, value now) of every value that differs."""
    if isinstance(known, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*known, *now]):
            yield from _compare(known.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif known != now:
        yield where, known, now


def _shorten(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:100]} … ({_hash(value)})"


def _hash(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def _checksum(tensor: Tensor, block: int = 2**20) -> int:
    """Σ word·weight over the bytes as 64-bit words, modulo 2⁶⁴; each position has its own weight."""
    data = tensor.contiguous().resolve_conj().resolve_neg().view(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    length = min(block, -(-data.numel() // 8))
    weights = torch.arange(1, length + 1, dtype=torch.int64, device=data.device) * -0x61C8864680B583EB
    weights = weights ^ (weights >> 29) | 1
    for number, part in enumerate(data.split(8 * block)):
        padded = torch.cat([part, part.new_zeros(-part.numel() % 8)])
        words = padded.view(torch.int64)
        total += (words * weights[: len(words)]).sum() * (2 * number + 1)
    return int(total) & 0xFFFFFFFFFFFFFFFF


def _array(array: Any) -> str:
    try:
        return digest(torch.from_numpy(np.ascontiguousarray(array)))
    except TypeError:  # strings or objects
        return f"{array.dtype} {array.shape} {_hash(repr(array.tolist()))}"


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _code_of(function: types.FunctionType, seen: set[int]) -> Any:
    """The code of a function and the plain values and functions that it reads, as JSON."""
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))

    def value(item: Any) -> Any:
        if isinstance(item, types.FunctionType):
            return item.__qualname__ if _is_known(item) else _code_of(item, seen)
        if isinstance(item, Tensor | np.ndarray | np.generic) or _is_simple(item):
            return describe(item)
        if id(item) in seen or isinstance(item, type | types.ModuleType):
            return type(item).__qualname__
        seen.add(id(item))
        if isinstance(item, Mapping):
            return {str(key): value(inner) for key, inner in item.items()}
        if isinstance(item, Set):
            return sorted((value(inner) for inner in item), key=repr)
        if isinstance(item, list | tuple):
            return [value(inner) for inner in item]
        if isinstance(item, nn.Module):
            return [type(item).__qualname__, {name: digest(tensor) for name, tensor in item.state_dict().items()}]
        return [type(item).__qualname__, options(item, value)]

    code = function.__code__
    named = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return {
        "code": _bytecode(code, function.__doc__),
        "defaults": [value(v) for v in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())],
        "closure": {name: value(cell.cell_contents) for name, cell in cells.items() if _holds_value(cell)},
        "globals": {name: value(item) for name, item in sorted(named.items()) if not isinstance(item, type)},
    }


def _holds_value(cell: Any) -> bool:
    try:
        return not isinstance(cell.cell_contents, type)
    except ValueError:  # not assigned yet
        return False


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _bytecode(code: types.CodeType, doc: str | None = None) -> list[Any]:
    constants = [_constant(c) for c in code.co_consts if doc is None or c != doc]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames), list(code.co_freevars)]


def _constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _bytecode(constant)
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return [_constant(c) for c in constant] if isinstance(constant, tuple) else repr(constant)


def _class(kind: type) -> str:
    """The name and, unless a library defines it, a hash of its methods and plain attributes."""
    own = [k for k in kind.__mro__ if _package(k) not in LIBRARIES]
    if not own:
        return kind.__qualname__
    methods = [_code_of(f, set()) for k in own for f in _methods(k)]
    values = [[n, describe(v)] for k in own for n, v in sorted(vars(k).items()) if n[0] != "_" and _is_simple(v)]
    return f"{kind.__qualname__} (code {_hash([methods, values])})"


def _methods(kind: type) -> Iterator[types.FunctionType]:
    for name, item in sorted(vars(kind).items()):
        function = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        if isinstance(function, types.FunctionType) and name not in ("__repr__", "extra_repr"):
            yield function


def _package(thing: Any) -> str:
    return (getattr(thing, "__module__", None) or "").split(".")[0]


def _is_known(function: types.FunctionType) -> bool:
    """Whether its name says which function it is: one of a library, neither a lambda nor defined within another."""
    return _package(function) in LIBRARIES and "<" not in function.__qualname__


def _arguments(kind: type) -> list[tuple[str, bool]]:
    """(name, whether it takes any number) of the arguments of the constructor: ``*tensors`` of a TensorDataset, say."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        (p.name, p.kind == p.VAR_POSITIONAL)
        for p in parameters
        if p.kind != p.VAR_KEYWORD and p.name not in ("device", "dtype")
    ]


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


def _limit(described: Any) -> Any:
    return described if len(described) <= _MAX_ITEMS else f"{len(described)} items, {_hash(described)}"
