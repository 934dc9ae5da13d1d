"""Δ_A^{…}: a probability vector along the last dimension, for any leading shape (Sec. 4.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spen.protocols import Domain

SimplexUpdate = Literal["logits", "through_logits", "mirror", "projected"]
_UPDATES = ("logits", "through_logits", "mirror", "projected")


class Simplex(Domain):
    """A product of simplices along the last dimension, by one of four updates. Init always returns logits.

    ``logits``          l ← l − η ∇E(softmax(l)), as Eq. 8 reads: the gradient with respect to y moves the logits.
    ``through_logits``  l ← l − η ∇_l E(softmax(l)), as the authors' code does: the chain rule through the softmax.
    ``mirror``          y ← softmax(log y − η ∇E(y)), Eq. 7. Carried as log y, so that y may underflow.
    ``projected``       y ← the nearest point of the simplex to y − η ∇E(y).

    ``logits`` and ``mirror`` are the same method in other coordinates: equal outputs, equal gradients. Momentum keeps
    them equal; L-BFGS, whose history depends on the coordinates, does not.
    """

    def __init__(self, update: SimplexUpdate = "logits") -> None:
        super().__init__()
        if update not in _UPDATES:
            raise ValueError(f"Simplex has no update {update!r}; choose one of {', '.join(_UPDATES)}")
        self.update = update
        self.through = update == "through_logits"

    def enter(self, start: Tensor) -> Tensor:
        if self.update == "mirror":
            return torch.log_softmax(start, -1)
        return torch.softmax(start, -1) if self.update == "projected" else start

    def output(self, z: Tensor) -> Tensor:
        if self.update == "mirror":
            return z.exp()
        return z if self.update == "projected" else torch.softmax(z, -1)

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        moved = z - direction
        if self.update == "mirror":
            return torch.log_softmax(moved, -1)
        return project_simplex(moved) if self.update == "projected" else moved

    # With s = √y, the tangents are √y·(e − s⟨s, e⟩): they sum to zero, vanish where y does, and rescale the
    # Hessian of an entropy, diag(1/y), to the identity, which is what conjugate gradients like.
    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        s = y.clamp_min(0).sqrt()
        return s * (tangent - s * (s * tangent).sum(-1, keepdim=True))

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        s = y.clamp_min(0).sqrt()
        scaled = s * cotangent
        return scaled - s * (s * scaled).sum(-1, keepdim=True)

    def extra_repr(self) -> str:
        return f'update="{self.update}"'


def project_simplex(point: Tensor) -> Tensor:
    """argmin_{y ∈ Δ} ‖y − point‖² = max(point − θ, 0), with θ from the sorted coordinates (Duchi et al.).

    Batched over every leading dimension. Shifted by the maximum first, so that 1e4 costs no digits.
    """
    shifted = point - point.detach().amax(-1, keepdim=True)
    ordered = shifted.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = torch.arange(1, point.shape[-1] + 1, device=point.device, dtype=point.dtype)
    support = (ordered * count > sums).sum(-1, keepdim=True).clamp_min(1)
    threshold = sums.gather(-1, support - 1) / support
    return (shifted - threshold).clamp_min(0)
