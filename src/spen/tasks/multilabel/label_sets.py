"""Examples with label sets, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class LabelSets:
    """N examples: ``x`` (N, D) inputs and ``y`` (N, L) in {0, 1}, both float32, with the names of the labels."""

    x: Tensor
    y: Tensor
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.dim() != 2 or self.y.dim() != 2 or len(self.x) != len(self.y):
            raise ValueError(
                f"inputs {tuple(self.x.shape)} and labels {tuple(self.y.shape)} must be tables of equal length"
            )
        if len(self.labels) != self.y.shape[1]:
            raise ValueError(f"{len(self.labels)} names for {self.y.shape[1]} labels")
        if not bool(self.x.isfinite().all()):
            raise ValueError("the inputs hold NaN or infinity: fill in what is missing first")
        if not bool(((self.y == 0) | (self.y == 1)).all()):
            raise ValueError("labels must be 0 or 1")

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, rows: Tensor) -> LabelSets:
        """Some of the examples."""
        return replace(self, x=self.x[rows], y=self.y[rows])


def tensor(values: NDArray[np.generic]) -> Tensor:
    """float32, whatever came."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
