"""The memory law: bytes that autograd keeps for the backward pass, in iterates. python docs/scripts/memory.py"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from spen.gradients import Checkpointed, Exact, FiniteDifference, ForwardOverReverse
from tests.gradients.test_memory_and_counts import saved_bytes

ITERATE = 2 * 24 * 32 * 4

if __name__ == "__main__":
    strategies = [Exact(), Checkpointed(), FiniteDifference(), ForwardOverReverse()]
    print(f"{'T':>4s} " + " ".join(f"{type(s).__name__:>20s}" for s in strategies))
    for steps in (1, 5, 20, 50):
        print(f"{steps:4d} " + " ".join(f"{saved_bytes(steps, s) / ITERATE:20.1f}" for s in strategies), flush=True)
