"""What is done to batches of outputs, whatever their shape."""

from __future__ import annotations

from torch import Tensor


def flat(y: Tensor) -> Tensor:
    """(B, …) -> (B, n); one number per example, (B,), -> (B, 1)."""
    return y.flatten(1) if y.dim() > 1 else y.unsqueeze(1)
