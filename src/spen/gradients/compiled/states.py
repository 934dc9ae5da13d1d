"""What ``spen.derivatives`` knows of a network, by the shape of its inputs and the state of all that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spen.gradients.compiled.errors import INSTEAD
from spen.gradients.compiled.guards import Entry, Guarded
from spen.gradients.snapshots import generators, same

if TYPE_CHECKING:  # the compiler takes seconds to import: only a program needs it
    from spen.gradients.compiled.joint import Joint


@dataclass
class Built:
    """What is known of one state of the network."""

    once: list[str] = field(default_factory=list)  # operations that can be differentiated only once
    plain: str | None = None  # why there are no programs
    programs: dict[Any, Joint] = field(default_factory=dict)


@dataclass
class Slot:
    """Inputs of one shape."""

    met: int = 0
    guarded: Guarded | None = None
    plain: str | None = None  # why this shape stays plain
    why: str | None = None  # why the latest state of the network does

    def give_up(self, error: Exception) -> None:
        self.plain, self.guarded = without_advice(error), None

    def state(self) -> str:
        if self.plain is not None:
            return f"plain, {self.plain}"
        if self.guarded is None:
            return f"plain, met {self.met} time{'s' if self.met != 1 else ''}"
        count = sum(len(entry.built.programs) for entry in self.guarded.entries if entry.built is not None)
        return f"compiled, {count} program{'s' if count != 1 else ''}" + (f"; {self.why}" if self.why else "")


@dataclass(frozen=True)
class Call:
    """The graph of the network as it is now, and what it reads."""

    slot: Slot
    entry: Entry
    inputs: list[Tensor]
    point: int
    features: list[int | None]  # the place of each tensor of the features among the inputs


@contextmanager
def watched(call: Call, name: str, device: torch.device) -> Iterator[Built]:
    """Note whether a plain evaluation draws random numbers or writes into what it reads: a program must not."""
    built = call.entry.built = Built()
    constants = [(t, t.detach().clone()) for t in call.inputs if not t.requires_grad]
    before = generators(device)
    try:
        yield built
    except BaseException:
        call.entry.built = None  # to be watched again
        raise
    if not same(before, generators(device)):
        built.plain = f"the {name} draws random numbers"
    elif not all(torch.equal(t, then) for t, then in constants):
        built.plain = f"the {name} writes into a tensor that it reads"
    call.slot.why = built.plain


def without_advice(error: Exception) -> str:
    return str(error).removesuffix(INSTEAD).rstrip(" .")
