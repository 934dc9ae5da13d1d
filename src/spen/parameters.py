"""Numbers that stay positive whatever an optimiser does to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Positive(nn.Module):
    """exp(u): rates, weights of constraints, variances. ``u`` is a parameter if learned, else a buffer."""

    log: Tensor

    def __init__(self, value: float | Sequence[float] | Tensor, *, learned: bool, name: str) -> None:
        super().__init__()
        values = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
        if not bool((values > 0).all() and values.isfinite().all()):
            raise ValueError(f"{name} must be positive and finite, not {value}")
        if learned:
            self.log = nn.Parameter(values.log())
        else:
            self.register_buffer("log", values.log())
        self.learned = learned

    def forward(self) -> Tensor:
        return self.log.exp()

    def extra_repr(self) -> str:
        return f"{[round(v, 6) for v in self.log.detach().exp().flatten().tolist()]}, learned={self.learned}"
