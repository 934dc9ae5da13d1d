"""Gradient strategies: how training differentiates the descent."""

from spen.descent.gradients import (
    Auto,
    Checkpointed,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Implicit,
    NotTwiceDifferentiable,
    Replayed,
    Truncated,
)

__all__ = [
    "Auto",
    "Checkpointed",
    "Exact",
    "FiniteDifference",
    "ForwardOverReverse",
    "GradientStrategy",
    "Implicit",
    "NotTwiceDifferentiable",
    "Replayed",
    "Truncated",
]
