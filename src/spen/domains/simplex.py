"""Δ_A^{…}: a probability vector along one dimension, the last by default, whatever the others are (Sec. 4.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spen.protocols import Domain
from spen.tensors import flat

SimplexUpdate = Literal["logits", "through_logits", "mirror", "projected"]
_UPDATES = ("logits", "through_logits", "mirror", "projected")


class Simplex(Domain):
    """A product of simplices along ``dim``, by one of four updates. Init always returns logits.

    ``dim`` is the dimension of y that holds the classes: -1, the last, for (B, …, K); 1 for images of (B, K, H, W).

    ``logits``          l ← l − η ∇E(softmax(l)), as Eq. 8 reads: the gradient with respect to y moves the logits.
    ``through_logits``  l ← l − η ∇_l E(softmax(l)), as the authors' code does: the chain rule through the softmax.
    ``mirror``          y ← softmax(log y − η ∇E(y)), Eq. 7. Carried as log y, so that y may underflow.
    ``projected``       y ← the nearest point of the simplex to y − η ∇E(y).

    ``logits`` and ``mirror`` are the same method in other coordinates: equal outputs, equal gradients. Momentum keeps
    them equal; L-BFGS, whose history depends on the coordinates, does not.
    """

    def __init__(self, update: SimplexUpdate = "logits", *, dim: int = -1) -> None:
        super().__init__()
        if update not in _UPDATES:
            raise ValueError(f"Simplex has no update {update!r}; choose one of {', '.join(_UPDATES)}")
        if not isinstance(dim, int) or dim == 0:
            raise ValueError(
                f"dim must be the dimension of y that holds the classes, not {dim!r}; dimension 0 is the batch"
            )
        self.update = update
        self.dim = dim
        self.through = update == "through_logits"

    def enter(self, start: Tensor) -> Tensor:
        self._check_shape(start)
        if self.update == "mirror":
            return torch.log_softmax(start, self.dim)
        return torch.softmax(start, self.dim) if self.update == "projected" else start

    def output(self, z: Tensor) -> Tensor:
        if self.update == "mirror":
            return z.exp()
        return z if self.update == "projected" else torch.softmax(z, self.dim)

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        moved = z - direction
        if self.update == "mirror":
            return torch.log_softmax(moved, self.dim)
        return project_simplex(moved, self.dim) if self.update == "projected" else moved

    # With s = √y, the tangents are √y·(e − s⟨s, e⟩): they sum to zero, vanish where y does, and rescale the
    # Hessian of an entropy, diag(1/y), to the identity, which speeds up conjugate gradients.
    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        s = y.clamp_min(0).sqrt()
        return s * (tangent - s * (s * tangent).sum(self.dim, keepdim=True))

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        s = y.clamp_min(0).sqrt()
        scaled = s * cotangent
        return scaled - s * (s * scaled).sum(self.dim, keepdim=True)

    def contains(self, y: Tensor) -> Tensor:
        slack = 8 * torch.finfo(y.dtype).eps * y.shape[self.dim]
        sums = (y.sum(self.dim) - 1).abs() <= slack
        return flat(y >= 0).all(1) & flat(sums).all(1)

    def _check_shape(self, start: Tensor) -> None:
        place = self.dim if self.dim > 0 else start.dim() + self.dim
        if not 0 < place < start.dim():
            raise ValueError(
                f"the Simplex holds the classes in dimension {self.dim}, but Init returned shape {tuple(start.shape)}, "
                "whose dimension 0 is the batch: return (B, …, K), or name the dimension by Simplex(dim=…)"
            )

    def extra_repr(self) -> str:
        return f'update="{self.update}"' + ("" if self.dim == -1 else f", dim={self.dim}")


def project_simplex(point: Tensor, dim: int = -1) -> Tensor:
    """argmin_{y ∈ Δ} ‖y − point‖² = max(point − θ, 0), with θ from the sorted coordinates (Duchi et al.).

    Batched over every other dimension. Shifted by the maximum first, so that 1e4 costs no digits.
    """
    if dim != -1:
        return project_simplex(point.movedim(dim, -1)).movedim(-1, dim)
    shifted = point - point.detach().amax(-1, keepdim=True)
    ordered = shifted.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = torch.arange(1, point.shape[-1] + 1, device=point.device, dtype=point.dtype)
    support = (ordered * count > sums).sum(-1, keepdim=True).clamp_min(1)
    threshold = sums.gather(-1, support - 1) / support
    return (shifted - threshold).clamp_min(0)
