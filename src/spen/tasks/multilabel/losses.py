"""Differentiable approximations of F1 on relaxed label sets, per example: (B, L), (B, L) -> (B,)."""

from __future__ import annotations

from torch import Tensor

from spen.objectives import binary_log_loss
from spen.objectives.losses import check_shapes


def soft_f1(y: Tensor, target: Tensor) -> Tensor:
    """Δ(y, y*) = 1 − 2⟨y, y*⟩ / (Σy + Σy*): 1 − F1 where y is a set, smooth between sets."""
    check_shapes(y, target)
    sizes = y.flatten(1).sum(1) + target.flatten(1).sum(1)
    return 1 - 2 * (y * target).flatten(1).sum(1) / sizes.clamp_min(1e-6)


def relaxed_f1(y: Tensor, target: Tensor) -> Tensor:
    """2⟨y, y*⟩ / (Σy + Σy*): F1 if y is a set."""
    return 1 - soft_f1(y, target)


class F1AndLog:
    """soft F1 + w · log loss. Soft F1 alone has no gradient where every y is near 0, so training cannot start on it."""

    def __init__(self, weight: float = 0.05) -> None:
        if weight < 0:
            raise ValueError(f"the weight of the log loss must not be negative, not {weight}")
        self.weight = weight

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        return soft_f1(y, target) + self.weight * binary_log_loss(y, target)


def hamming(y: Tensor, target: Tensor) -> Tensor:
    """Σ y + y* − 2 y y*: the number of labels that differ, linear in y."""
    check_shapes(y, target)
    return (y + target - 2 * y * target).flatten(1).sum(1)
