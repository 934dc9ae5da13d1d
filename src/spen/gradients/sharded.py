"""A descent of an energy whose weights ``fully_shard`` (FSDP2) has spread over processes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from spen.descent.trajectory import Trajectory

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@contextmanager
def gathered(energy: nn.Module) -> Iterator[None]:
    """The energy with whole weights: gathered once for a descent, their gradients averaged once over the processes.

    ``fully_shard`` would gather them for each of the T evaluations and free them in between, before the second
    derivative is taken. Inside, its hooks on the energy are off. What a strategy keeps of the energy holds the whole
    weights, so the backward pass finds them too.
    """
    parts = list(energy.modules())
    places = [(part, key, getattr(part, key)) for part in parts for key in _HOOKS]
    hooked = [(part, key, hooks) for part, key, hooks in places if any(map(_state, hooks.values()))]
    _refuse_groups(parts, [part for part, _, _ in hooked])
    for part, _, hooks in hooked:
        _refuse_other_types(filter(None, map(_state, hooks.values())))
        part.reshard()  # type: ignore[operator]  # an evaluation outside of a descent may have left it whole
    sharded = [(p, name, w) for p in parts for name, w in p._parameters.items() if hasattr(w, "device_mesh")]
    if not sharded:
        yield
        return
    whole: dict[int, Tensor] = {}
    for part, name, weight in sharded:
        if id(weight) not in whole:  # a weight may have two names
            whole[id(weight)] = _Whole.apply(weight)
        part._parameters[name] = whole[id(weight)]  # type: ignore[assignment]
    for part, key, hooks in hooked:
        # Another dict in its place: a strategy notes the fields of the module for its backward pass, and so this one.
        setattr(part, key, OrderedDict((k, hook) for k, hook in hooks.items() if _state(hook) is None))
    try:
        yield
    finally:
        for part, name, weight in sharded:
            part._parameters[name] = weight
        for part, key, hooks in hooked:
            setattr(part, key, hooks)


class _Whole(torch.autograd.Function):
    """All of a sharded weight; its gradient is the mean of those of the processes, each of which keeps its share."""

    @staticmethod
    def forward(ctx: Any, weight: Any) -> Tensor:
        ctx.mesh, ctx.placements = weight.device_mesh, weight.placements
        return weight.full_tensor()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Zeros where nothing arrived: all processes must take part.
        from torch.distributed.tensor import DTensor, Partial

        parts = DTensor.from_local(gradient / ctx.mesh.size(), ctx.mesh, [Partial()] * ctx.mesh.ndim)
        return parts.redistribute(ctx.mesh, ctx.placements)


def _state(hook: Any) -> Any:
    """What ``fully_shard`` knows of a module, if the hook is one of its own."""
    owner = getattr(hook, "__self__", None)
    return owner if type(owner).__module__.startswith("torch.distributed.fsdp.") else None


def _refuse_groups(parts: list[nn.Module], hooked: list[nn.Module]) -> None:
    for part in parts:
        made = any(base.__module__.startswith("torch.distributed.fsdp.") for base in type(part).__mro__)
        if made and all(part is not other for other in hooked):
            raise ValueError(
                "fully_shard was given a list of modules of the energy, whose hooks cannot be set aside for a descent: "
                "give it one module at a time"
            )


def _refuse_other_types(states: Iterable[Any]) -> None:
    for state in states:
        policy = state._mp_policy
        if policy.param_dtype or policy.output_dtype:
            raise ValueError(
                "the energy is sharded with MixedPrecisionPolicy(param_dtype or output_dtype), which a descent does "
                "not follow: leave them out for the energy, and use torch.autocast to compute in a shorter type"
            )


def _flatten(trajectory: Trajectory) -> tuple[list[Any], dict[str, Any]]:
    outputs = trajectory.outputs
    taken = next((n for n, y in enumerate(outputs, 1) if y is outputs[-1]), 0)  # the last may stand for more steps
    # Without the start: DistributedDataParallel waits for a gradient through every leaf, and few losses read this one.
    return [outputs[:taken], trajectory._gradients], vars(trajectory)


def _unflatten(leaves: Any, fields: dict[str, Any]) -> Trajectory:
    trajectory = object.__new__(Trajectory)
    outputs, gradients = leaves
    outputs = [*outputs, *outputs[-1:] * (len(fields["outputs"]) - len(outputs))]
    vars(trajectory).update(fields | {"outputs": outputs, "_gradients": gradients})
    return trajectory


# DistributedDataParallel and fully_shard hook the tensors of a model's answer, and find them by torch's own tree.
pytree.register_pytree_node(Trajectory, _flatten, _unflatten)
