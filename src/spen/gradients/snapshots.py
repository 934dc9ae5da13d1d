"""Random number generators, parameters, buffers and fields as they are now, to be restored later.

A backward pass evaluates the energy again in the state that it had in the descent; a trial evaluation changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

States = tuple[Tensor, ...]  # of torch's generator on the CPU, and of the one on the device


def generators(device: torch.device) -> States:
    """The state of the generators that an energy on a device may draw from; empty during a capture."""
    if device.type != "cuda":
        return (torch.get_rng_state(),)
    if torch.cuda.is_current_stream_capturing():
        return ()
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)


def same(first: States, second: States) -> bool:
    """Whether no number was drawn in between."""
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(first, second, strict=True))


def set_generators(states: States, device: torch.device) -> None:
    """Restore a state that ``generators`` returned."""
    if states:
        torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def unhooked(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Leaves without their hooks, which would be called for each part of a gradient and again for the whole of it.

    They require a gradient meanwhile, as they did in the descent.
    """
    held = [(t, t._backward_hooks, t.requires_grad) for t in tensors if t._backward_hooks or not t.requires_grad]
    for tensor, _, _ in held:
        tensor._backward_hooks = None
        tensor.requires_grad_(True)
    try:
        yield
    finally:
        for tensor, hooks, wanted in held:
            tensor.requires_grad_(wanted)
            tensor._backward_hooks = hooks


@contextmanager
def drawing_from(states: States, device: torch.device) -> Iterator[None]:
    """Draw the numbers that followed a state; afterwards the generators continue from where they were."""
    if not states:
        yield
        return
    before = generators(device)
    set_generators(states, device)
    try:
        yield
    finally:
        set_generators(before, device)


class Held:
    """The fields, parameters, buffers and submodules of some modules as they are now.

    All of these may be replaced before the backward pass: ``torch.func.functional_call`` replaces tensors, ``eval()``
    the mode, a schedule a number. Tensors that are changed in place in between cannot be put back: that is an error.
    Those that the evaluation itself changes, between the creation and ``settle``, are left out: running means.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = modules
        parts = _parts(modules)
        places: list[Any] = [own for p in parts for own in (p.__dict__, p._parameters, p._buffers, p._modules)]
        self._places = [(own, dict(own)) for own in places]
        self._kinds = [(part, type(part)) for part in parts]
        # Those that require a gradient are inputs of the autograd Function, and compared by autograd.
        found = (value for _, own in self._places for value in own.values() if isinstance(value, Tensor))
        self._tensors = [(t, t._version) for t in found if not t.requires_grad and not t.is_inference()]

    def settle(self) -> bool:
        """Forget the tensors that have been changed since, and say whether there are any.

        Lazy modules have got their shapes.
        """
        if any(type(part) is not kind for part, kind in self._kinds):
            self.__init__(*self._modules)  # type: ignore[misc]
        same = [(tensor, version) for tensor, version in self._tensors if tensor._version == version]
        changed, self._tensors = len(same) < len(self._tensors), same
        return changed

    def require_unchanged(self) -> None:
        """Raise if a tensor was changed in place."""
        for tensor, version in self._tensors:
            if tensor._version != version:
                named = ((name, value) for _, own in self._places for name, value in own.items())
                name = next(name for name, value in named if value is tensor)
                raise RuntimeError(
                    f"the tensor {name!r} of shape {tuple(tensor.shape)}, which the descent has read, was changed in "
                    "place before the backward pass: call backward before the change, or use gradient=Exact()"
                )

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """The modules with these tensors and fields; afterwards they have those again that they had before."""
        for part, kind in self._kinds:
            if type(part) is not kind:
                raise RuntimeError(
                    f"a module that was a {kind.__name__} in the descent is a {type(part).__name__} in the backward "
                    "pass, as parametrizations make it: call backward before the change, or use gradient=Exact()"
                )
        self.require_unchanged()
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
    """Restore the generators and the buffers of the modules afterwards: a trial is no part of training."""
    parts = _parts(modules)
    held = [(p._buffers, n, b, b._version, b.clone()) for p in parts for n, b in p._buffers.items() if b is not None]
    try:
        with drawing_from(generators(device), device):
            yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, version, value in held:
                if buffers[name] is not buffer or buffer._version != version:
                    buffers[name] = buffer.copy_(value)


def _parts(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """All modules in these. Those of TorchScript hold their state elsewhere, and it cannot be exchanged."""
    found = [part for module in modules for part in module.modules()]
    return [part for part in found if not isinstance(part, torch.jit.ScriptModule)]
