"""[low, high]ⁿ: relaxed binary labels, or numbers with known bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spen.protocols import Domain
from spen.tensors import flat

BoxUpdate = Literal["projected", "logits", "through_logits"]


class Box(Domain):
    """The box [0, 1]ⁿ, or ``low`` ≤ y ≤ ``high``, by one of three updates.

    ``logits``          l ← l − η ∇E(y(l)): Eq. 8 for two classes. Init returns logits.
    ``through_logits``  l ← l − η ∇_l E(y(l)). Init returns logits.
    ``projected``       y ← Clip[y − d]. Init returns y_0, clipped. The gradient is exactly 0 where it clips.

    y(l) = low + (high − low)·sigmoid(l). The bounds are numbers, or tensors, lists or arrays that broadcast to one
    example of y; these become buffers that are not part of the state dict.
    """

    low: float | Tensor
    high: float | Tensor

    def __init__(self, update: BoxUpdate = "logits", *, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> None:
        super().__init__()
        if update not in ("projected", "logits", "through_logits"):
            raise ValueError(f'Box has no update {update!r}; choose "projected", "logits" or "through_logits"')
        try:
            bounds = [torch.as_tensor(bound).detach() for bound in (low, high)]
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"the bounds of a Box are numbers, tensors, lists or arrays, not low={low!r} and high={high!r}: "
                "for y without bounds take Reals()"
            ) from None
        low, high = (torch.as_tensor(b) if isinstance(b, Sequence | np.ndarray) else b for b in (low, high))
        if not all(bool(bound.isfinite().all()) for bound in bounds) or not bool((bounds[0] < bounds[1]).all()):
            raise ValueError(f"a Box needs finite bounds with low < high, not low={low} and high={high}")
        self.update = update
        self.through = update == "through_logits"
        self.within_unit = bool((bounds[0] >= 0).all() and (bounds[1] <= 1).all())
        """Whether every y of the box may be a probability."""
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            dtype = torch.promote_types(torch.promote_types(bounds[0].dtype, bounds[1].dtype), torch.float32)
            for name, bound in zip(("low", "high"), bounds, strict=True):
                self.register_buffer(name, bound.to(dtype, copy=True), persistent=False)
        else:
            self.low, self.high = float(low), float(high)

    def enter(self, start: Tensor) -> Tensor:
        self._check_shape(start)
        return self._clipped(start) if self.update == "projected" else start

    def output(self, z: Tensor) -> Tensor:
        if self.update == "projected":
            return z
        inside = torch.sigmoid(z)
        # lerp is exact at both ends, so that no rounding leaves the box.
        return inside if self.is_unit else torch.lerp(*self.bounds(z), inside)

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        moved = z - direction
        return self._clipped(moved) if self.update == "projected" else moved

    # A coordinate on a face cannot move off it. In logits, √((y − low)(high − y)) rescales the Hessian of a binary
    # entropy, 1/(y(1 − y)) over [0, 1], to one, which speeds up conjugate gradients.
    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        return tangent * self._room(y)

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent * self._room(y)

    def contains(self, y: Tensor) -> Tensor:
        low, high = self.bounds(y)
        return flat((y >= low) & (y <= high)).all(1)

    @property
    def is_unit(self) -> bool:
        """Whether this is [0, 1]ⁿ, by numbers."""
        return isinstance(self.low, float) and (self.low, self.high) == (0.0, 1.0)

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high), in the type and on the device of ``like``."""
        low, high = (b.to(like) if isinstance(b, Tensor) else like.new_full((), b) for b in (self.low, self.high))
        return low, high

    def _clipped(self, y: Tensor) -> Tensor:
        if isinstance(self.low, Tensor):
            return torch.clamp(y, *self.bounds(y))
        return y.clamp(self.low, self.high)  # type: ignore[arg-type]

    def _room(self, y: Tensor) -> Tensor:
        low, high = (self.low, self.high) if isinstance(self.low, float) else self.bounds(y)
        if self.update == "projected":
            return ((y > low) & (y < high)).to(y.dtype)
        return ((y - low) * (high - y)).clamp_min(0).sqrt()

    def _check_shape(self, start: Tensor) -> None:
        if isinstance(self.low, float):
            return
        for name, bound in (("low", self.low), ("high", self.high)):
            assert isinstance(bound, Tensor)
            pairs = zip(reversed(bound.shape), reversed(start.shape), strict=False)
            if bound.dim() >= start.dim() or not all(size in (1, whole) for size, whole in pairs):
                raise ValueError(
                    f"the Box has {name} of shape {tuple(bound.shape)} for y of shape {tuple(start.shape)}; a bound "
                    f"must broadcast to one example, {tuple(start.shape[1:])}"
                )

    def extra_repr(self) -> str:
        bounds = "" if self.is_unit else f", low={_short(self.low)}, high={_short(self.high)}"
        return f'update="{self.update}"{bounds}'


def _short(bound: float | Tensor) -> str:
    """A number, or a tensor by its shape."""
    return f"tensor{tuple(bound.shape)}" if isinstance(bound, Tensor) and bound.dim() else f"{float(bound):g}"
