"""One graph of an energy for each state of everything that the energy reads.

``torch.compile``'s front end (Dynamo) follows the Python code of an energy and writes guards for whatever it reads:
attributes of nested objects, class attributes, globals, closures, hooks, shapes, types, autocast and grad mode. Here
it is asked before every descent. Where all guards hold it answers with the graph that was made for this state, and
with the tensors that the energy would read now: parameters, buffers and any other, which are inputs of the graph and
never part of it. Where one fails, a new graph is made. Asking costs some 20 µs and launches no kernel.

Dynamo does not guard the methods of classes and environment variables: these are compared here. What it cannot follow
(files, clocks, values of tensors that Python code looks at) is refused.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

MANY_STATES = 16
"""Graphs of one function and shape from which on its state is taken to change all the time."""


INSTEAD = "Use the strategy inside Compiled by itself"


class NotTraceable(RuntimeError):
    """The energy cannot be written down as a fixed list of operations."""


class Entry:
    """A graph that Dynamo made, and what was built from it."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.built: Any = None


class Guarded:
    """``function`` as a graph, chosen by the state of everything that it reads.

    Calling it with the arguments of ``function`` computes nothing: it returns the entry for the present state and the
    tensors that are the inputs of its graph now, in the order of its placeholders.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.entries: list[Entry] = []
        self._methods = Methods()
        self._begin()

    def _begin(self) -> None:
        import torch
        from torch._dynamo.eval_frame import set_eval_frame

        # Dynamo keeps its graphs beside the code object: a copy of the code is a cache of our own. Globals of its own
        # let go of the graphs together with this object.
        code = self.function.__code__.replace(co_name=f"{self.function.__name__}_{id(self):x}")
        own = types.FunctionType(code, {**self.function.__globals__, "__builtins__": builtins}, code.co_name)
        self.entries.clear()
        self._compiled = torch.compile(own, backend=_capture, fullgraph=True, dynamic=False)
        self._own, self._set_mode = own, set_eval_frame

    def __call__(self, *arguments: Any) -> tuple[Entry, tuple[Tensor, ...]]:
        if self.entries and self._methods.changed():
            self._begin()
        if self.entries:
            _found.latest = None
            self._look_up(*arguments)
            if _found.latest is not None:
                return _found.take()
        if len(self.entries) >= MANY_STATES:
            raise NotTraceable(f"{self.name} reads something that is different at every call. {INSTEAD}")
        return self._traced(*arguments)

    def _look_up(self, *arguments: Any) -> None:
        """As ``torch._dynamo.run`` does: where no graph fits the function itself runs."""
        before = self._set_mode(False)
        try:
            self._own(*arguments)
        finally:
            self._set_mode(before)

    def _traced(self, *arguments: Any) -> tuple[Entry, tuple[Tensor, ...]]:
        import torch._dynamo as dynamo

        _found.latest = None
        options: dict[str, Any] = {
            "skip_nnmodule_hook_guards": False,
            "automatic_dynamic_shapes": False,  # a number that has changed becomes no input: it is guarded by value
            "specialize_float": True,
            "recompile_limit": MANY_STATES + 1,
            "record_runtime_overhead": False,
        }
        try:
            with dynamo.config.patch(**options):
                self._compiled(*arguments)
        except NotTraceable:
            raise
        except Exception as error:
            raise NotTraceable(f"{self.name} cannot be traced: {reason(error)}. {INSTEAD}") from error
        if _found.latest is None:
            raise NotTraceable(f"{self.name} cannot be traced: torch.compile is switched off. {INSTEAD}")
        entry, tensors = _found.take()
        self.entries.append(entry)
        self._methods.note(arguments)
        return entry, tensors


class _Found(threading.local):
    latest: tuple[Entry, tuple[Tensor, ...]] | None = None

    def take(self) -> tuple[Entry, tuple[Tensor, ...]]:
        latest, self.latest = self.latest, None
        assert latest is not None
        return latest


_found = _Found()


def _capture(graph: GraphModule, example: list[Any]) -> Callable[..., Any]:
    """The backend of Dynamo: what it compiled notes the inputs and computes nothing."""
    entry, nothing = Entry(graph), _placeholder_results(graph)

    def note(*tensors: Tensor) -> Any:
        _found.latest = entry, tensors
        return nothing

    return note


def _placeholder_results(graph: GraphModule) -> tuple[Any, ...]:
    import torch

    (results,) = graph.graph.output_node().args
    return tuple(torch.empty(0) for _ in results)  # type: ignore[union-attr]


def reason(error: BaseException) -> str:
    """Why, in whole sentences: the first line of an error, and Dynamo's explanation of it."""
    if "data-dependent" in str(error):
        return "its Python code depends on the values of tensors"
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    found = [lines[0].rstrip(".")]
    found += [
        line.removeprefix("Explanation:").strip().rstrip(".") for line in lines if line.startswith("Explanation:")
    ]
    return ". ".join(found)


# ── what Dynamo leaves to others ──


class Methods:
    """The Python functions of every class that an energy may call into, and the environment if it reads that."""

    def __init__(self) -> None:
        self._classes: dict[type, tuple[Mapping[str, Any], int, Callable[[Any], Any], Any]] = {}
        self._functions: list[types.FunctionType] = []
        self._codes: list[types.CodeType] = []
        self._environment: dict[Any, Any] | None = None

    def note(self, roots: Any) -> None:
        """Remember what is there now."""
        walk = _Walk(roots)
        functions: dict[int, Any] = {}
        for owner in walk.classes:
            own = vars(owner)
            names = [name for name, value in own.items() if _function(value) is not None]
            if names:
                get = operator.itemgetter(*names)
                self._classes[owner] = own, len(own), get, get(own)
            for name in names:
                function = _function(own[name])
                functions[id(function)] = function
        self._functions = list(functions.values())
        self._codes = [function.__code__ for function in self._functions]
        if walk.reads_environment:
            self._environment = dict(_environment())

    def changed(self) -> bool:
        """Whether a method was replaced or added, or an environment variable that may be read has changed."""
        try:
            for own, size, get, known in self._classes.values():
                if get(own) != known or len(own) != size:
                    return True
        except KeyError:
            return True
        if list(map(_code_of, self._functions)) != self._codes:
            return True
        return self._environment is not None and _environment() != self._environment


_code_of = operator.attrgetter("__code__")


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


_OTHERS = {"torch", "numpy", "scipy", "pytest", "hypothesis", *sys.stdlib_module_names}


def _is_foreign(thing: Any) -> bool:
    """Whether it belongs to Python or a library that nobody changes while a program runs."""
    module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    if module == "__main__":
        return False
    return not isinstance(module, str) or module.partition(".")[0] in _OTHERS


class _Walk:
    """Every class whose methods can be reached from some objects, through attributes, containers, closures, globals."""

    def __init__(self, roots: Any, most: int = 20_000) -> None:
        self.classes: set[type] = set()
        self.reads_environment = False
        self._seen: set[int] = set()
        stack = [roots]
        while stack and len(self._seen) < most:
            thing = stack.pop()
            if id(thing) in self._seen or isinstance(thing, bool | int | float | str | bytes | Tensor | types.CodeType):
                continue
            self._seen.add(id(thing))
            stack.extend(self._reached(thing))

    def _reached(self, thing: Any) -> Iterator[Any]:
        if isinstance(thing, dict):
            yield from list(thing.values())
        elif isinstance(thing, list | tuple | set | frozenset):
            yield from list(thing)
        elif isinstance(thing, functools.partial):
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
        elif not isinstance(thing, types.ModuleType):
            yield type(thing)
            yield from list(getattr(thing, "__dict__", {}).values())
            for name in getattr(type(thing), "__slots__", ()):
                yield getattr(thing, name, None)

    def _of_class(self, owner: type) -> Iterator[Any]:
        for part in owner.__mro__:
            if part is object or (_is_foreign(part) and not issubclass(part, nn.Module)) or part is nn.Module:
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
        names = list(_names(function.__code__))
        self.reads_environment |= "environ" in names or "getenv" in names
        for name in names:
            found = function.__globals__.get(name)
            if isinstance(found, types.ModuleType):
                if not _is_foreign(found):
                    yield from (vars(found).get(n) for n in names)
            elif found is not None:
                yield found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
