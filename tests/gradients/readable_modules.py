"""Energies that read modules, their hooks and parametrizations."""

from __future__ import annotations

import math
import random
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.gradients.readable import WIDTH, Mutations, Term, kind, one, setting

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
