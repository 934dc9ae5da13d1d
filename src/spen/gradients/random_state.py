"""The state of torch's random number generators: taken, compared, and put back for an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

States = tuple[Tensor, ...]  # of torch's generator on the host, and of the one on the device


def generators(device: torch.device) -> States:
    """The state of the generators that an energy on a device may draw from; nothing is known during a capture."""
    if device.type != "cuda":
        return (torch.get_rng_state(),)
    if torch.cuda.is_current_stream_capturing():
        return ()
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)


def same(first: States, second: States) -> bool:
    """Whether nobody has drawn a number in between."""
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(first, second, strict=True))


def set_generators(states: States, device: torch.device) -> None:
    """Go on from a state that ``generators`` returned."""
    if states:
        torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def drawing_from(states: States, device: torch.device) -> Iterator[None]:
    """Draw the numbers that followed a state; afterwards the generators go on from where they were."""
    if not states:
        yield
        return
    before = generators(device)
    set_generators(states, device)
    try:
        yield
    finally:
        set_generators(before, device)
