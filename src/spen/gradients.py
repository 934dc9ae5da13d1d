"""Gradient strategies: how training differentiates the descent."""

from spen.descent.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Implicit,
    NotTwiceDifferentiable,
    Replayed,
    Truncated,
    Written,
)

__all__ = [
    "Auto",
    "Checkpointed",
    "Compiled",
    "Exact",
    "FiniteDifference",
    "ForwardOverReverse",
    "GradientStrategy",
    "Implicit",
    "NotTwiceDifferentiable",
    "Replayed",
    "Truncated",
    "Written",
]
