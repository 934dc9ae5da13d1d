"""Parameters, buffers and fields of modules as they are now, to be put back later.

A backward pass evaluates the energy again, as it was; a trial leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spen.gradients.random_state import drawing_from, generators


class Held:
    """The fields, parameters, buffers and parts of some modules as they are now: all that may be exchanged later.

    ``torch.func.functional_call`` exchanges tensors, ``eval()`` the mode, a schedule a number.
    """

    def __init__(self, *modules: nn.Module) -> None:
        parts = [part for module in modules for part in module.modules()]
        places: list[Any] = [own for p in parts for own in (p.__dict__, p._parameters, p._buffers, p._modules)]
        self._places = [(own, dict(own)) for own in places]
        self._kinds = [(part, type(part)) for part in parts]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """The modules with these tensors and fields; afterwards they have those again that they had before."""
        for part, kind in self._kinds:
            if type(part) is not kind:
                raise RuntimeError(
                    f"a module that was a {kind.__name__} in the descent is a {type(part).__name__} in the backward "
                    "pass, as parametrizations make it: call backward before the change, or use gradient=Exact()"
                )
        changed = [
            (own, then, dict(own))
            for own, then in self._places
            if len(own) != len(then) or any(own.get(name) is not value for name, value in then.items())
        ]
        for own, then, _ in changed:
            own.clear()
            own.update(then)
        try:
            yield
        finally:
            for own, _, now in changed:
                own.clear()
                own.update(now)


@contextmanager
def untouched(device: torch.device, *modules: nn.Module) -> Iterator[None]:
    """Leave random numbers and the buffers of the modules as they were: what is tried is not a part of training."""
    parts = [part for module in modules for part in module.modules()]
    held = [(p._buffers, n, b, b._version, b.clone()) for p in parts for n, b in p._buffers.items() if b is not None]
    try:
        with drawing_from(generators(device), device):
            yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, version, value in held:
                if buffers[name] is not buffer or buffer._version != version:
                    buffers[name] = buffer.copy_(value)
