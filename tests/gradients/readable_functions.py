"""Energies that read methods and functions."""

from __future__ import annotations

import copy
import functools
import random
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.readable import Data, Mutations, Plain, Term, kind, one, setting

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
