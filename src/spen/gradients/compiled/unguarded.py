"""What an energy may read and Dynamo does not guard: compared before every descent."""

from __future__ import annotations

import builtins
import functools
import operator
import os
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks

from spen.gradients.compiled.errors import INSTEAD, NotTraceable


class Unguarded:
    """The state that an energy may reach and Dynamo has no guards for.

    The Python functions of all classes, their bases and metaclasses; hooks on all modules; the order of an OrderedDict;
    globals that would hide a builtin; the environment, if it is read.
    """

    def __init__(self) -> None:
        self._classes: dict[type, tuple[Mapping[str, Any], set[str], Callable[[Any], Any], Any]] = {}
        self._bases: dict[type, tuple[type, ...]] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._codes: list[types.CodeType] = []
        self._ordered: dict[int, tuple[OrderedDict[Any, Any], list[Any]]] = {}
        self._hidden: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._hooks: list[Any] = []
        self._environment: dict[Any, Any] | None = None

    def record(self, roots: Any) -> None:
        """Record the state that can be reached from some objects."""
        walk = _Walk(roots)
        for owner in walk.classes:
            own = vars(owner)
            names = [name for name, value in own.items() if issubclass(owner, type) or _is_looked_up(value)]
            self._bases[owner] = owner.__mro__
            get: Callable[[Any], Any] = operator.itemgetter(*names) if names else _no_names
            self._classes[owner] = own, set(own), get, get(own)
            for name in names:
                if (function := _function(own[name])) is not None:
                    self._functions[id(function)] = function
        self._codes = list(map(_code_of, self._functions.values()))
        self._ordered |= {id(found): (found, list(found)) for found in walk.ordered}
        for of_module, used in walk.builtins.values():
            self._hidden[id(of_module)] = of_module, {name for name in used if name not in of_module}
        self._hooks = _hooks()
        if walk.reads_environment:
            self._environment = dict(_environment())

    def changed(self) -> bool:
        """Whether any of it differs from what was recorded."""
        try:
            for own, names, get, known in self._classes.values():
                if get(own) != known or (not own.keys() <= names and _grown(own, names)):
                    return True
        except KeyError:
            return True
        return (
            list(map(_code_of, self._functions.values())) != self._codes
            or list(map(_bases_of, self._bases)) != list(self._bases.values())
            or any(_reordered(found, order) for found, order in self._ordered.values())
            or any(not of_module.keys().isdisjoint(names) for of_module, names in self._hidden.values())
            or _hooks() != self._hooks
            or (self._environment is not None and _environment() != self._environment)
        )


_code_of = operator.attrgetter("__code__")
_bases_of = operator.attrgetter("__mro__")


def _no_names(own: Mapping[str, Any]) -> None:
    """The look-up for a class without methods."""


def _is_looked_up(value: Any) -> bool:
    """Whether it is a method, a property or another descriptor. Plain values are guarded by Dynamo."""
    return callable(value) or hasattr(type(value), "__get__")


_HOOKS = (
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_forward_hooks,
    module_hooks._global_backward_pre_hooks,
    module_hooks._global_backward_hooks,
)


def _grown(own: Mapping[str, Any], names: set[str]) -> bool:
    """Whether a class has a new method. New plain values, which copy and pickle leave behind too, do not count."""
    new = {name: value for name, value in own.items() if name not in names}
    names.update(new)
    return any(map(_is_looked_up, new.values()))


def _reordered(found: OrderedDict[Any, Any], order: list[Any]) -> bool:
    """Whether the same keys come in another order. Other keys are guarded by Dynamo."""
    return list(found) != order and set(found) == set(order)


def _hooks() -> list[Any]:
    """The hooks on all modules of the process."""
    return [list(hooks.items()) for hooks in _HOOKS] if any(_HOOKS) else []


def _environment() -> dict[Any, Any]:
    return os.environ._data  # type: ignore[attr-defined,no-any-return]


def _function(value: Any) -> types.FunctionType | None:
    """The Python function behind an attribute of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    return value if isinstance(value, types.FunctionType) else None


_FOREIGN = {"torch", "numpy", "scipy", "pytest", "hypothesis", *sys.stdlib_module_names}


def _is_foreign(thing: Any) -> bool:
    """Whether it belongs to Python or to a library that is not changed at run time."""
    module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    if module == "__main__":
        return False
    return not isinstance(module, str) or module.partition(".")[0] in _FOREIGN


class _Walk:
    """Every class that can be reached from some objects through attributes, containers, closures and globals."""

    def __init__(self, roots: Any, most: int = 1_000_000) -> None:
        self.classes: set[type] = set()
        self.ordered: list[OrderedDict[Any, Any]] = []
        self.builtins: dict[int, tuple[dict[str, Any], set[str]]] = {}  # names of builtins, by module
        self.reads_environment = False
        self._seen: set[int] = set()
        self._held: list[Any] = []  # an id belongs to one object only while the object lives
        stack = [roots]
        while stack:
            thing = stack.pop()
            if isinstance(thing, bool | int | float | str | bytes | types.CodeType) or thing is None:
                continue
            if id(thing) in self._seen:
                continue
            self._seen.add(id(thing))
            self._held.append(thing)
            if len(self._seen) > most:
                raise NotTraceable(f"the energy holds more than {most:,} objects, too many to compare. {INSTEAD}")
            with suppress(Exception):  # an object that raises when it is read: Dynamo could not read it either
                stack.extend(self._reached(thing))

    def _reached(self, thing: Any) -> Iterator[Any]:
        if isinstance(thing, functools.partial):
            yield from (thing.func, thing.args, thing.keywords)
        elif isinstance(thing, types.MethodType):
            yield from (thing.__func__, thing.__self__)
        elif isinstance(thing, staticmethod | classmethod):
            yield thing.__func__
        elif isinstance(thing, property):
            yield thing.fget
        elif isinstance(thing, types.FunctionType):
            yield from self._of_function(thing)
        elif isinstance(thing, type):
            yield from self._of_class(thing)
        elif isinstance(thing, types.ModuleType):
            if not _is_foreign(thing):  # held as an object: anything in it may be used
                yield from [v for v in vars(thing).values() if isinstance(v, type | types.FunctionType)]
        else:
            yield from self._of_object(thing)

    def _of_object(self, thing: Any) -> Iterator[Any]:
        if isinstance(thing, dict):
            yield from [*thing.keys(), *thing.values()]
            if isinstance(thing, OrderedDict) and len(thing) > 1:
                self.ordered.append(thing)
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            yield from list(thing)
        if type(thing).__module__ != "builtins":
            yield type(thing)
            yield from list(getattr(thing, "__dict__", {}).values())
            for part in type(thing).__mro__:
                slots = part.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    with suppress(AttributeError):
                        yield object.__getattribute__(thing, name)

    def _of_class(self, owner: type) -> Iterator[Any]:
        for part in (*owner.__mro__, type(owner)):
            if part in (object, type, nn.Module) or (_is_foreign(part) and not issubclass(part, nn.Module)):
                continue
            if part not in self.classes:
                self.classes.add(part)
                if not _is_foreign(part):
                    yield from list(vars(part).values())

    def _of_function(self, function: types.FunctionType) -> Iterator[Any]:
        if _is_foreign(function):
            return
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        yield function.__defaults__
        yield function.__kwdefaults__
        yield function.__dict__
        names, own = set(_names(function.__code__)), function.__globals__
        self.reads_environment |= "environ" in names or "getenv" in names
        _, used = self.builtins.setdefault(id(own), (own, set()))
        used.update(name for name in names if name in _BUILTINS)
        modules: list[types.ModuleType | None] = []
        if not function.__module__.startswith("spen."):  # whose imports within functions change no energy
            modules += [sys.modules.get(name) for name in names]
            modules += [sys.modules.get(f"{own.get('__package__')}.{name}") for name in names]
        for name in names:
            found = own.get(name)
            if isinstance(found, types.ModuleType):
                modules.append(found)
            elif found is not None:
                yield found
        yield from _of_modules(modules, names)


def _of_modules(modules: list[types.ModuleType | None], names: set[str]) -> Iterator[Any]:
    """What a function that uses these names may find in modules, and in modules within them."""
    seen: set[types.ModuleType] = set()
    while modules:
        module = modules.pop()
        if module is None or module in seen or _is_foreign(module):
            continue
        seen.add(module)
        found = [vars(module).get(name) for name in names]
        modules += [value for value in found if isinstance(value, types.ModuleType)]
        yield from (value for value in found if not isinstance(value, types.ModuleType))


_BUILTINS = frozenset(vars(builtins))


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function uses, and strings that may be names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.replace(".", "_").isidentifier():
            yield constant
