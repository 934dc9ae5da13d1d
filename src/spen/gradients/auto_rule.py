"""The rule by which ``Auto`` chooses: it looks at the energy and the device, never at a clock."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from spen.descent.loop import Descend
from spen.descent.potential import Potential
from spen.gradients.checkpointed import Checkpointed
from spen.gradients.compiled import Compiled
from spen.gradients.exact import Exact
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.second_order import Graph, NotTwiceDifferentiable, require_second_derivative
from spen.gradients.snapshots import untouched
from spen.protocols import GradientStrategy

BUDGET = 0.25
"""The share of the memory of a device that a backward pass may hold."""


@dataclass(frozen=True)
class Look:
    """What the rule decides from: one evaluation of the energy and its gradient, on the first batch."""

    plain: GradientStrategy
    reason: str
    program: Compiled | None = None
    program_reason: str = ""

    @classmethod
    def at(cls, descend: Descend, potential: Potential, start: Tensor) -> Look:
        device = start.device
        with untouched(device, potential.energy):
            try:
                require_second_derivative(potential, descend, start)
            except NotTwiceDifferentiable as error:
                return cls(FiniteDifference(), str(error))
            held, operations = held_bytes(descend, potential, start)
        total, memory = held * descend.rule.steps, _memory(device)
        size = f"double backprop holds about {in_mib(total)}"
        fits = total <= BUDGET * memory
        plain: GradientStrategy = Exact() if fits else Checkpointed()
        reason = f"{size}, {'within' if fits else 'more than'} {BUDGET:.0%} of the memory"
        if _is_cpu(device):
            return cls(plain, reason)
        convolves = any("Convolution" in name for name in operations)
        through = ForwardOverReverse() if convolves else Checkpointed()
        # What is worth keeping is at most a third or so of what double backprop holds.
        keep = total / 3 <= BUDGET * memory
        kind = "forward over reverse, for convolutions" if convolves else "reverse over reverse"
        return cls(plain, reason, Compiled(through, keep=keep, patience=0), f"{kind}; {size}")


def held_bytes(descend: Descend, potential: Potential, start: Tensor) -> tuple[int, set[str]]:
    """The bytes that autograd keeps for one step of double backprop, and the operations of the energy."""
    cut = potential.detached()
    own = {t.untyped_storage().data_ptr() for t in (*potential.energy.parameters(), *cut.feature_tensors())}
    storages: dict[int, int] = {}
    operations: set[str] = set()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.no_grad():
        z = descend.domain.enter(start.detach())
        point = descend.point(z, descend.domain.output(z))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cut.differentiable_gradient(point, lambda _, energies, __: operations.update(Graph.of(energies).operations))
    return sum(size for address, size in storages.items() if address not in own), operations


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on every system
        return 8 * 2**30


def in_mib(number: int) -> str:
    return f"{number / 2**20:,.1f} MiB"
