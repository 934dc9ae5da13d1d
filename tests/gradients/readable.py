"""Energies that read something, and what a user may do to it: one small term for each kind of thing.

A kind returns a term of an energy and its mutations, by name. Classes and functions are made anew each time, so that
nothing is left behind; what belongs to the whole process is put back by the ``ExitStack``.
"""

from __future__ import annotations

import array
import collections
import copy
import enum
import functools
import math
import os
import random
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spen.energies import Energy

WIDTH = 3
VALUES = (0.5, 0.9, 1.4, 2.1)

Mutations = dict[str, Callable[[], Any]]
Kind = Callable[[random.Random, ExitStack], tuple[nn.Module, Mutations]]
KINDS: dict[str, Kind] = {}


def kind(make: Kind) -> Kind:
    KINDS[make.__name__.replace("_", " ")] = make
    return make


class Term(nn.Module):
    """Σ tanh(β A y − 0.3 x)² with a β from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def curve(self, y: Tensor, x: Tensor, beta: Any) -> Tensor:
        return torch.tanh(beta * self.mix(y) - 0.3 * x).square().sum(1)


class Readable(Energy):
    """The sum of some terms."""

    def __init__(self, terms: list[nn.Module]) -> None:
        super().__init__()
        self.summands = nn.ModuleList(terms)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        total = 0.1 * (y - x).square().sum(1)
        for term in self.summands:
            total = total + term(y, x)
        return total


def one(rng: random.Random) -> float:
    """Values come back, or are new."""
    return rng.choice(VALUES) if rng.random() < 0.8 else round(rng.uniform(0.3, 2.5), 3)


def setting(owner: Any, name: str, rng: random.Random) -> Callable[[], None]:
    return lambda: setattr(owner, name, one(rng))


# ── fields of objects ──


@kind
def own_attribute(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Own(Term):
        beta = 1.0

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, self.beta)

    term = Own()
    return term, {
        "set": setting(term, "beta", rng),
        "delete": lambda: term.__dict__.pop("beta", None),
        "class": setting(Own, "beta", rng),
        "int": lambda: setattr(term, "beta", rng.choice([1, 2])),
        "bool": lambda: setattr(term, "beta", True),
        "numpy": lambda: setattr(term, "beta", np.float64(one(rng))),
        "numpy32": lambda: setattr(term, "beta", np.float32(rng.choice([0.5, 2.0]))),
        "tensor": lambda: setattr(term, "beta", torch.tensor(one(rng), dtype=torch.float64)),
        "infinitesimal": lambda: setattr(term, "beta", 1.0 + rng.choice([1e-4, 2e-4])),
    }


class Plain:
    beta = 1.0


@dataclass
class Data:
    beta: float = 1.0
    inner: Plain = field(default_factory=Plain)


@dataclass(frozen=True)
class Frozen:
    beta: float = 1.0


@dataclass(slots=True)
class SlottedData:
    beta: float = 1.0


class Slots:
    __slots__ = ("beta",)

    def __init__(self) -> None:
        self.beta = 1.0


class Named(NamedTuple):
    beta: float = 1.0
    other: float = 2.0


class Level(enum.Enum):
    LOW = 0.6
    HIGH = 1.7


@kind
def nested_object(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Nested(Term):
        def __init__(self, cfg: Any) -> None:
            super().__init__()
            self.cfg = cfg

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, self.cfg.beta)

    class Typed:
        beta = 1.0

    makers: list[Callable[[], Any]] = [
        Typed, Plain, Data, Slots, SlottedData, Frozen, Named, lambda: types.SimpleNamespace(beta=1.0)
    ]  # fmt: skip
    term = Nested(rng.choice(makers)())

    def change() -> None:
        if isinstance(term.cfg, Named):
            term.cfg = term.cfg._replace(beta=one(rng))
        elif isinstance(term.cfg, Frozen):
            object.__setattr__(term.cfg, "beta", one(rng))
        else:
            term.cfg.beta = one(rng)

    def anew() -> None:
        term.cfg = rng.choice(makers)()

    def other_class() -> None:
        class Other(Typed):
            beta = one(rng)

        term.cfg = Typed()
        term.cfg.__class__ = Other

    return term, {"field": change, "object": anew, "class of it": setting(Typed, "beta", rng), "retyped": other_class}


@kind
def deeper_object(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Deep(Term):
        def __init__(self) -> None:
            super().__init__()
            self.data = Data()
            self.data.inner.beta = 1.0
            self.data.inner.more = {"list": [1.0, [0.5, (0.7, Data())]]}  # type: ignore[attr-defined]

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            deep = self.data.inner.more["list"][1][1]  # type: ignore[attr-defined]
            return self.curve(y, x, self.data.inner.beta * deep[0] + deep[1].inner.beta)

    term = Deep()
    inner = term.data.inner

    def in_tuple() -> None:
        term.data.inner.more["list"][1][1] = (one(rng), Data())  # type: ignore[attr-defined]

    def in_data() -> None:
        term.data.inner.more["list"][1][1][1].inner.beta = one(rng)  # type: ignore[attr-defined]

    return term, {"field": setting(inner, "beta", rng), "in a tuple": in_tuple, "in a dataclass": in_data}


@kind
def containers(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Holding(Term):
        def __init__(self) -> None:
            super().__init__()
            self.table: dict[str, float] = {"a": 1.0, "b": 0.5}
            self.numbers = [1.0, 0.3]
            self.chosen = {"a"}
            self.frozen = frozenset({1, 2})
            self.queue = collections.deque([0.2, 0.4])
            self.default = collections.defaultdict(float, {"u": 0.1})
            self.ordered = collections.OrderedDict([("p", 0.1), ("q", 0.2)])

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            beta = 0.2 * sum(self.numbers) + 0.1 * len(self.numbers)
            for name, value in self.table.items():
                beta = 0.5 * beta + value
                if name in self.chosen:
                    beta += 0.3
            if 3 in self.frozen:
                beta += 0.7
            for value in self.ordered.values():
                beta = 0.7 * beta + value
            return self.curve(y, x, beta + self.queue[0] + self.default["u"])

    term = Holding()

    def turned() -> None:
        term.table = dict(reversed(list(term.table.items())))

    return term, {
        "value of a dict": lambda: term.table.__setitem__("a", one(rng)),
        "key of a dict": lambda: term.table.__setitem__(rng.choice("cde"), one(rng)),
        "order of a dict": turned,
        "order of an OrderedDict": lambda: term.ordered.move_to_end("p"),
        "item of a list": lambda: term.numbers.__setitem__(0, one(rng)),
        "length of a list": lambda: term.numbers.append(one(rng)),
        "member of a set": lambda: term.chosen.symmetric_difference_update({"b"}),
        "frozenset": lambda: setattr(term, "frozen", frozenset(rng.sample([1, 2, 3], 2))),
        "deque": lambda: term.queue.rotate(1),
        "deque item": lambda: term.queue.__setitem__(0, one(rng)),
        "defaultdict": lambda: term.default.__setitem__("u", one(rng)),
        "equal dict": lambda: setattr(term, "table", dict(term.table)),
    }


@kind
def strings_and_flags(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Choosing(Term):
        def __init__(self) -> None:
            super().__init__()
            self.how = "tanh"
            self.level = Level.LOW
            self.flag = False
            self.nothing: float | None = None
            self.size = array.array("d", [1.0])

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            beta = self.level.value + (0.4 if self.flag else 0.0)
            if self.nothing is not None:
                beta = beta + self.nothing
            if self.how == "tanh":
                return self.curve(y, x, beta)
            return getattr(torch, self.how)(beta * self.mix(y)).sum(1)

    term = Choosing()
    return term, {
        "string": lambda: setattr(term, "how", rng.choice(["tanh", "sin", "cos", "sigmoid"])),
        "enum": lambda: setattr(term, "level", rng.choice(list(Level))),
        "flag": lambda: setattr(term, "flag", not term.flag),
        "none": lambda: setattr(term, "nothing", rng.choice([None, 0.2, 0.4])),
    }


@kind
def objects_with_methods(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Schedule:
        def __init__(self) -> None:
            self.at = 1.0

        def value(self) -> float:
            return self.at

        def __call__(self, scale: float) -> float:
            return scale * self.at

        def __getitem__(self, index: int) -> float:
            return self.at + index

        def __len__(self) -> int:
            return 2

        @property
        def half(self) -> float:
            return 0.5 * self.at

        @staticmethod
        def fixed() -> float:
            return 0.2

        @classmethod
        def of_class(cls) -> float:
            return getattr(cls, "shift", 0.1)

    class Scheduled(Term):
        def __init__(self) -> None:
            super().__init__()
            self.schedule = Schedule()

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            s = self.schedule
            beta = 0.3 * s.value() + 0.2 * s(0.5) + 0.1 * s[1] + 0.1 * len(s) + s.half + s.fixed() + s.of_class()
            return self.curve(y, x, beta)

    term = Scheduled()

    def patched(name: str, wrap: Callable[[Any], Any] = lambda f: f) -> Callable[[], None]:
        def patch() -> None:
            v = one(rng)
            setattr(Schedule, name, wrap(lambda *_: v))

        return patch

    def on_instance() -> None:
        v = one(rng)
        term.schedule.value = lambda: v  # type: ignore[method-assign]

    return term, {
        "field": setting(term.schedule, "at", rng),
        "method": patched("value"),
        "__call__": patched("__call__"),
        "__getitem__": patched("__getitem__"),
        "__len__": lambda: setattr(Schedule, "__len__", rng.choice([lambda _: 1, lambda _: 5])),
        "property": patched("half", property),
        "staticmethod": patched("fixed", staticmethod),
        "classmethod": patched("of_class", classmethod),
        "number for a method": lambda: setattr(Schedule, "half", one(rng)),
        "class attribute": setting(Schedule, "shift", rng),
        "on the instance": on_instance,
    }


@kind
def class_attributes(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Base(Term):
        beta = 1.0

    class Between(Base):
        pass

    class Meta(type):
        gamma = 0.3

    class Static(metaclass=Meta):
        delta = 0.2

        class Inside:
            value = 0.1

    class Derived(Between):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, self.beta + type(self).beta + Static.delta + Static.gamma + Static.Inside.value)

    term = Derived()
    return term, {
        "base": setting(Base, "beta", rng),
        "between": setting(Between, "beta", rng),
        "own": setting(Derived, "beta", rng),
        "another class": setting(Static, "delta", rng),
        "metaclass": setting(Meta, "gamma", rng),
        "nested class": setting(Static.Inside, "value", rng),
        "instance": setting(term, "beta", rng),
        "property for a number": lambda: setattr(Between, "beta", 0.8 if rng.random() < 0.5 else 1.3),
    }


# ── methods and functions ──


@kind
def methods(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Base(Term):
        def gain(self) -> float:
            return 1.0

        @property
        def shift(self) -> float:
            return 0.1

        @functools.cached_property
        def cached(self) -> float:
            return 0.2

    class Method(Base):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, self.gain() + self.shift)

    term = Method()

    def on_class(owner: type, name: str, wrap: Callable[[Any], Any] = lambda f: f) -> Callable[[], None]:
        def patch() -> None:
            v = one(rng)
            setattr(owner, name, wrap(lambda self: v))

        return patch

    def forward_on_class() -> None:
        v = one(rng)
        Method.forward = lambda self, y, x: self.curve(y, x, v)  # type: ignore[method-assign]

    def on_instance() -> None:
        v = one(rng)
        term.gain = types.MethodType(lambda self: v, term)  # type: ignore[method-assign]

    def curve_on_instance() -> None:
        v = one(rng)
        term.curve = lambda y, x, beta: torch.sin(v * beta * y + x).sum(1)  # type: ignore[method-assign]

    def new_code() -> None:
        if not Base.gain.__closure__:
            Base.gain.__code__ = rng.choice([lambda self: 0.25, lambda self: 0.75]).__code__

    return term, {
        "base method": on_class(Base, "gain"),
        "method over the base": on_class(Method, "gain"),
        "property": on_class(Base, "shift", property),
        "property over the base": on_class(Method, "shift", property),
        "forward": forward_on_class,
        "on the instance": on_instance,
        "another on the instance": curve_on_instance,
        "code": new_code,
        "curve of the base": lambda: setattr(
            Base, "curve", rng.choice([Term.curve, lambda self, y, x, b: torch.cos(b * self.mix(y)).sum(1)])
        ),
    }


@kind
def functions_in_attributes(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    def powered(h: Tensor, scale: float = 1.0, *, shift: float = 0.1) -> Tensor:
        return torch.sin(scale * h + shift)

    def closing(v: float) -> Callable[[Tensor], Tensor]:
        def closed(h: Tensor) -> Tensor:
            return torch.tanh(v * h)

        return closed

    class Called(Term):
        def __init__(self) -> None:
            super().__init__()
            self.act: Callable[..., Tensor] = powered
            self.other: Callable[..., Tensor] = closing(1.0)
            self.part = functools.partial(powered, scale=0.7)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            h = self.mix(y) - 0.3 * x
            return (self.act(h) + self.other(h) + self.part(h)).square().sum(1)

    term = Called()

    def a_lambda() -> None:
        v = one(rng)
        term.act = lambda h: torch.cos(v * h)

    def cell() -> None:
        closure = getattr(term.other, "__closure__", None)
        if closure:
            closure[0].cell_contents = one(rng)

    def keyword() -> None:
        term.part.keywords["scale" if term.part.func is powered else "beta"] = one(rng)

    def keyword_default() -> None:
        powered.__kwdefaults__["shift"] = one(rng)

    return term, {
        "activation": lambda: setattr(term, "act", rng.choice([torch.tanh, torch.sin, F.softplus, F.silu, powered])),
        "lambda": a_lambda,
        "closure": lambda: setattr(term, "other", closing(one(rng))),
        "cell": cell,
        "default": lambda: setattr(powered, "__defaults__", (one(rng),)),
        "keyword default": keyword_default,
        "partial": lambda: setattr(term, "part", functools.partial(powered, scale=one(rng))),
        "keyword of a partial": keyword,
        "partial of another": lambda: setattr(term, "part", functools.partial(F.softplus, beta=one(rng))),
    }


GLOBAL_NUMBER = 1.0
GLOBAL_LIST = [0.5, 0.2]
GLOBAL_DICT = {"beta": 0.3}
GLOBAL_TENSOR = torch.tensor(0.4, dtype=torch.float64)
GLOBAL_OBJECT = Data()


def global_function(h: Tensor) -> Tensor:
    return torch.sin(GLOBAL_NUMBER * h)


library = types.ModuleType("tests.gradients.library_that_is_read")
library.__dict__.update(gain=0.7, act=torch.tanh, functional=F)


class Globals(Term):
    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        beta = GLOBAL_NUMBER * GLOBAL_LIST[0] + GLOBAL_DICT["beta"] + 0.1 * GLOBAL_OBJECT.inner.beta
        h = global_function(self.mix(y)) * GLOBAL_TENSOR + library.act(library.gain * y)
        return (h + beta * x * y).square().sum(1)


@kind
def module_globals(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    own = globals()
    names = ("GLOBAL_NUMBER", "GLOBAL_LIST", "GLOBAL_DICT", "GLOBAL_TENSOR", "GLOBAL_OBJECT", "global_function")
    before = {name: copy.deepcopy(own[name]) for name in names}
    stack.callback(own.update, {name: own[name] for name in names})
    own.update(before)
    library_before = dict(vars(library))
    stack.callback(vars(library).update, library_before)

    def function() -> None:
        v = one(rng)
        own["global_function"] = lambda h: torch.tanh(v * h)

    def tensor_in_place() -> None:
        with torch.no_grad():
            own["GLOBAL_TENSOR"].fill_(one(rng))

    return Globals(), {
        "number": lambda: own.__setitem__("GLOBAL_NUMBER", one(rng)),
        "list": lambda: own["GLOBAL_LIST"].__setitem__(0, one(rng)),
        "dict": lambda: own["GLOBAL_DICT"].__setitem__("beta", one(rng)),
        "tensor": lambda: own.__setitem__("GLOBAL_TENSOR", torch.tensor(one(rng), dtype=torch.float64)),
        "tensor in place": tensor_in_place,
        "object": lambda: setattr(own["GLOBAL_OBJECT"].inner, "beta", one(rng)),
        "function": function,
        "attribute of a module": lambda: setattr(library, "gain", one(rng)),
        "function of a module": lambda: setattr(library, "act", rng.choice([torch.sin, torch.tanh, F.softplus])),
    }


@kind
def closures(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    number, table, held = 1.0, {"beta": 0.5}, Plain()
    tensor = torch.tensor(0.3, dtype=torch.float64)

    def helper(h: Tensor, gain: float = 0.8) -> Tensor:
        return torch.sin(gain * number * h)

    class Closing(Term):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, number + table["beta"] + held.beta) + (tensor * helper(self.mix(y))).sum(1)

    def change() -> None:
        nonlocal number
        number = one(rng)

    def tensor_changed() -> None:
        nonlocal tensor
        tensor = torch.tensor(one(rng), dtype=torch.float64)

    def replaced() -> None:
        nonlocal helper
        v = one(rng)
        helper = lambda h, gain=0.8: torch.cos(v * gain * h)  # noqa: E731

    def defaults() -> None:
        helper.__defaults__ = (one(rng),)

    return Closing(), {
        "number": change,
        "dict": lambda: table.__setitem__("beta", one(rng)),
        "object": setting(held, "beta", rng),
        "tensor": tensor_changed,
        "function": replaced,
        "default": defaults,
    }


# ── modules ──


@kind
def submodules(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Layers(Term):
        def __init__(self) -> None:
            super().__init__()
            self.soft = nn.Softplus(beta=1.0)
            self.stack = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.drop = nn.Dropout(0.0)
            self.by_name = nn.ModuleDict({"act": nn.SiLU()})

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            h = self.soft(self.stack(self.drop(y)) - 0.2 * x) + self.by_name["act"](self.mix(y))
            return h.square().sum(1) * (0.7 if self.training else 1.0)

    term = Layers()

    def layer() -> None:
        term.stack[0] = nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.5).double()

    def longer() -> None:
        if len(term.stack) < 4:
            term.stack.append(rng.choice([nn.Tanh, nn.Sigmoid, nn.Softplus])())
        else:
            term.stack = nn.Sequential(*list(term.stack)[:2])

    def patched_class() -> None:
        v = one(rng)
        if "forward" not in stack_of:
            stack_of["forward"] = nn.Softplus.forward
            stack.callback(setattr, nn.Softplus, "forward", nn.Softplus.forward)
        nn.Softplus.forward = lambda self, h: torch.tanh(v * h)  # type: ignore[method-assign]

    stack_of: dict[str, Any] = {}
    return term, {
        "beta": setting(term.soft, "beta", rng),
        "threshold": lambda: setattr(term.soft, "threshold", rng.choice([-50.0, 20.0])),
        "activation": lambda: setattr(term, "soft", rng.choice([nn.Softplus(one(rng)), nn.Tanh(), nn.SiLU()])),
        "layer": layer,
        "length": longer,
        "mode": lambda: term.train(not term.training),
        "mode of one": lambda: setattr(term.drop, "training", not term.drop.training),
        "dropout": lambda: setattr(term.drop, "p", 0.0),
        "in a ModuleDict": lambda: term.by_name.__setitem__("act", rng.choice([nn.Tanh, nn.Sigmoid, nn.SiLU])()),
        "forward of torch's class": patched_class,
    }


@kind
def tensors(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Tensors(Term):
        scale: Tensor
        later: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(WIDTH))
            self.plain = torch.full((WIDTH,), 0.5, dtype=torch.float64)
            self.held = types.SimpleNamespace(tensor=torch.tensor(0.3, dtype=torch.float64))
            self.listed = [torch.tensor(0.2, dtype=torch.float64)]
            self.array = np.full(WIDTH, 0.4)
            self.own = nn.Parameter(torch.ones(WIDTH))

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            h = self.curve(y, x, self.scale * self.own) + torch.sin(self.plain * y).sum(1)
            return h + (self.held.tensor + self.listed[0]) * torch.cos(torch.from_numpy(self.array) * y).sum(1)

    term = Tensors()

    def values(*shape: int) -> Tensor:
        return torch.tensor(np.reshape([one(rng) for _ in range(math.prod(shape))], shape), dtype=torch.float64)

    def in_place(get: Callable[[], Tensor]) -> Callable[[], None]:
        def change() -> None:
            with torch.no_grad():
                get().copy_(values(*get().shape))

        return change

    def through_data() -> None:
        term.scale.data = values(WIDTH)

    def broadcast() -> None:
        term.scale = values(1).expand(WIDTH)

    def numbers_in_place() -> None:
        term.array[:] = one(rng)

    def parameter() -> None:
        term.own = nn.Parameter(values(WIDTH))

    def becomes_buffer() -> None:
        if isinstance(term.own, nn.Parameter):
            del term.own
            term.register_buffer("own", values(WIDTH))  # type: ignore[arg-type]
        else:
            del term.own
            term.own = nn.Parameter(values(WIDTH))

    def tied() -> None:
        if isinstance(term.own, nn.Parameter):
            term.mix.bias = term.own

    return term, {
        "buffer": lambda: setattr(term, "scale", values(WIDTH)),
        "buffer in place": in_place(lambda: term.scale if 0 not in term.scale.stride() else term.own),
        "buffer data": through_data,
        "buffer of other strides": broadcast,
        "plain": lambda: setattr(term, "plain", values(WIDTH)),
        "plain in place": in_place(lambda: term.plain),
        "in an object": lambda: setattr(term.held, "tensor", values()),
        "in an object in place": in_place(lambda: term.held.tensor),
        "in a list": lambda: term.listed.__setitem__(0, values()),
        "shape": lambda: setattr(term, "plain", values(*rng.choice([(1,), (WIDTH,), ()]))),
        "numpy": lambda: setattr(term, "array", np.full(WIDTH, one(rng))),
        "numpy in place": numbers_in_place,
        "parameter": parameter,
        "parameter in place": in_place(lambda: term.own),
        "frozen": lambda: (
            term.own.requires_grad_(not term.own.requires_grad) if isinstance(term.own, nn.Parameter) else None
        ),
        "layer frozen": lambda: term.mix.requires_grad_(not term.mix.weight.requires_grad),
        "buffer for a parameter": becomes_buffer,
        "tied": tied,
    }


@kind
def hooks(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Hooked(Term):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, 1.0)

    term = Hooked()
    handles: list[Any] = []

    def keep(handle: Any) -> None:
        handles.append(handle)
        stack.callback(handle.remove)

    def before() -> None:
        v = one(rng)
        keep(term.mix.register_forward_pre_hook(lambda module, args: (v * args[0],)))

    def after() -> None:
        v = one(rng)
        keep(term.mix.register_forward_hook(lambda module, args, result: torch.sin(v * result)))

    def on_term() -> None:
        v = one(rng)
        keep(term.register_forward_hook(lambda module, args, result: v * result))

    def everywhere() -> None:
        v = one(rng)

        def hook(module: nn.Module, args: Any, result: Any) -> Any:
            return v * result if isinstance(module, nn.Linear) else None

        keep(nn.modules.module.register_module_forward_hook(hook))

    def everywhere_before() -> None:
        v = one(rng)

        def hook(module: nn.Module, args: Any) -> Any:
            return (v * args[0],) if isinstance(module, nn.Linear) else None

        keep(nn.modules.module.register_module_forward_pre_hook(hook))

    def removed() -> None:
        if handles:
            handles.pop(rng.randrange(len(handles))).remove()

    return term, {
        "pre-hook": before,
        "hook": after,
        "hook of a term": on_term,
        "global hook": everywhere,
        "global pre-hook": everywhere_before,
        "removed": removed,
    }


@kind
def parametrizations_of_weights(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Times(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, weight: Tensor) -> Tensor:
            return self.by * torch.tanh(weight)

    class Weighted(Term):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, 1.0)

    term = Weighted()

    def toggled(add: Callable[[], Any]) -> Callable[[], None]:
        def toggle() -> None:
            if parametrize.is_parametrized(term.mix):
                parametrize.remove_parametrizations(term.mix, "weight")
            else:
                add()

        return toggle

    def times() -> None:
        if parametrize.is_parametrized(term.mix) and isinstance(first := term.mix.parametrizations.weight[0], Times):  # type: ignore[index, union-attr]
            first.by = one(rng)

    return term, {
        "added": toggled(lambda: parametrize.register_parametrization(term.mix, "weight", Times(one(rng)))),
        "weight norm": toggled(lambda: parametrizations.weight_norm(term.mix)),
        "field": times,
    }


# ── the process ──


@kind
def global_state(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Process(Term):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            beta = 1.0
            if os.environ.get("SPEN_TEST_BETA", "1") == "2":
                beta = 2.0
            if torch.get_default_dtype() == torch.float32:
                beta += 0.3
            made = torch.full((WIDTH,), 0.1).to(y.dtype)
            return self.curve(y, x, beta + float(os.getenv("SPEN_TEST_SHIFT", "0"))) + (made * y).sin().sum(1)

    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    for name in ("SPEN_TEST_BETA", "SPEN_TEST_SHIFT"):
        stack.callback(os.environ.pop, name, None)

    def precision() -> None:
        torch.set_float32_matmul_precision(rng.choice(["highest", "high", "medium"]))

    return Process(), {
        "environment": lambda: os.environ.__setitem__("SPEN_TEST_BETA", rng.choice("12")),
        "environment, a number": lambda: os.environ.__setitem__("SPEN_TEST_SHIFT", str(one(rng))),
        "default dtype": lambda: torch.set_default_dtype(rng.choice([torch.float32, torch.float64])),
        "matmul precision": precision,
        "threads": lambda: torch.set_num_threads(1),
    }


@kind
def retyped_energy(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class First(Term):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, 1.0)

    class Second(First):
        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, 1.7)

    term = First()

    def other_base() -> None:
        class Mixed(Term):
            def curve(self, y: Tensor, x: Tensor, beta: Any) -> Tensor:
                return torch.cos(beta * self.mix(y)).sum(1)

        First.__bases__ = (rng.choice([Mixed, Term]),)

    return term, {
        "class": lambda: setattr(term, "__class__", rng.choice([First, Second])),
        "bases": other_base,
    }


class Dynamic:
    """Attributes that are made up when they are asked for."""

    def __init__(self) -> None:
        self.__dict__["store"] = {"beta": 1.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["store"][name]
        except KeyError:
            raise AttributeError(name) from None


class Number:
    """A descriptor with a value of its own."""

    def __init__(self) -> None:
        self.value = 0.5

    def __get__(self, owner: Any, kind: Any = None) -> float:
        return self.value


@kind
def descriptors(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    number = Number()

    class Config(collections.UserDict):  # type: ignore[type-arg]
        described = number

    class Described(Term):
        def __init__(self) -> None:
            super().__init__()
            self.dynamic = Dynamic()
            self.config = Config(beta=0.4)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, self.dynamic.beta + self.config["beta"] + self.config.described)

    term = Described()
    return term, {
        "__getattr__": lambda: term.dynamic.store.__setitem__("beta", one(rng)),
        "UserDict": lambda: term.config.__setitem__("beta", one(rng)),
        "descriptor": setting(number, "value", rng),
    }


LATE = types.ModuleType("tests.gradients.late_library")
LATE_INSIDE = types.ModuleType("tests.gradients.late_library.inside")
sys.modules[LATE.__name__], sys.modules[LATE_INSIDE.__name__] = LATE, LATE_INSIDE
SOURCE = """
class Rate:
    def value(self):
        return 0.6

def rate():
    return Rate().value()
"""


class Late(Term):
    """Finds a class by an import in a function, by a chain of modules, and by a name that hides a builtin."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        from tests.gradients.late_library import Rate

        return self.curve(y, x, Rate().value() + LATE.inside.rate() + abs(-0.3))


@kind
def late_names(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    for library_made in (LATE, LATE_INSIDE):
        exec(SOURCE, library_made.__dict__)
    LATE.inside = LATE_INSIDE  # type: ignore[attr-defined]
    stack.callback(globals().pop, "abs", None)

    def patched(owner: Any, name: str) -> Callable[[], None]:
        def patch() -> None:
            v = one(rng)
            setattr(owner, name, lambda *_: v)

        return patch

    def other_class() -> None:
        exec(SOURCE.replace("0.6", str(one(rng))), rng.choice([LATE, LATE_INSIDE]).__dict__)

    return Late(), {
        "method of a class imported late": patched(LATE.Rate, "value"),
        "method behind two modules": patched(LATE_INSIDE.Rate, "value"),
        "module written anew": other_class,
        "function of a module": patched(LATE_INSIDE, "rate"),
        "hidden builtin": lambda: globals().__setitem__("abs", rng.choice([lambda v: 0.2, lambda v: 0.7])),
        "builtin again": lambda: globals().pop("abs", None),
    }


@kind
def caches(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    source = {"beta": 0.7}

    @functools.lru_cache
    def cached() -> float:
        return source["beta"]

    class Config:
        base = 0.5

        @functools.cached_property
        def kept(self) -> float:
            return self.base

    class Caching(Term):
        def __init__(self) -> None:
            super().__init__()
            self.cfg = Config()

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return self.curve(y, x, cached() + self.cfg.kept)

    term = Caching()

    def dropped() -> None:
        term.cfg.__dict__.pop("kept", None)
        term.cfg.base = one(rng)

    def filled() -> None:
        term.cfg.__dict__["kept"] = one(rng)

    return term, {
        "behind an lru_cache": lambda: source.__setitem__("beta", one(rng)),
        "lru_cache cleared": cached.cache_clear,
        "behind a cached_property": setting(term.cfg, "base", rng),
        "cached_property dropped": dropped,
        "cached_property filled": filled,
    }


@kind
def subclassed_containers(rng: random.Random, stack: ExitStack) -> tuple[nn.Module, Mutations]:
    class Options(dict):  # type: ignore[type-arg]
        shift = 0.1

        def beta(self) -> float:
            return self["a"]

    class Numbers(list):  # type: ignore[type-arg]
        def total(self) -> float:
            return sum(self)

    class Pair(NamedTuple):
        first: float = 0.4

        def half(self) -> float:
            return 0.5 * self.first

    class Leaf:
        def value(self) -> float:
            return 0.2

    class Subclassed(Term):
        def __init__(self) -> None:
            super().__init__()
            self.options, self.numbers, self.pair = Options(a=0.5), Numbers([0.1, 0.2]), Pair()
            self.leaves = collections.deque([Leaf()])
            self.keyed = {Leaf(): 0.1}

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            beta = self.options.beta() + self.options.shift + self.numbers.total() + self.pair.half()
            return self.curve(y, x, beta + self.leaves[0].value() + next(iter(self.keyed)).value())

    term = Subclassed()

    def patched(owner: type, name: str) -> Callable[[], None]:
        def patch() -> None:
            v = one(rng)
            setattr(owner, name, lambda self: v)

        return patch

    return term, {
        "item": lambda: term.options.__setitem__("a", one(rng)),
        "field of a dict": setting(term.options, "shift", rng),
        "method of a dict": patched(Options, "beta"),
        "method of a list": patched(Numbers, "total"),
        "method of a tuple": patched(Pair, "half"),
        "method in a deque": patched(Leaf, "value"),
        "appended": lambda: term.numbers.append(one(rng)) if len(term.numbers) < 5 else term.numbers.clear(),
    }
