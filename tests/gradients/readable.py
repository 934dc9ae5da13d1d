"""Energies that read something, and what a user may do to it: one small term for each kind of thing.

A kind returns a term of an energy and its mutations, by name. Classes and functions are made anew each time, so that
nothing is left behind; what belongs to the whole process is put back by the ``ExitStack``.
"""

from __future__ import annotations

import array
import collections
import enum
import random
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

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
