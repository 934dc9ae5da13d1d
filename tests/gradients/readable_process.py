"""Energies that read the state of the process, and objects of classes of their own."""

from __future__ import annotations

import collections
import functools
import os
import random
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.gradients.readable import WIDTH, Mutations, Term, kind, one, setting

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
