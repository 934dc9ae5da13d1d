"""An exponential mean of the weights of a stage: what is scored and kept, while training goes on with the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """θ̄ ← δ_n θ̄ + (1 − δ_n) θ after each update, δ_n = min(δ, (1 + n) / (10 + n)): short at first, then ``decay``."""

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.means: dict[str, Tensor] = {}

    def update(self) -> None:
        if not self.means:
            self.means = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._follow()
        self.updates += 1
        keep = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self.means.values()), [p.detach() for p in self.parameters.values()], 1 - keep)

    def swap(self) -> None:
        """Exchange the weights and their means by value: whoever holds the tensors sees them change and come back."""
        self._follow()
        with torch.no_grad():
            for name, mean in self.means.items():
                kept = self.parameters[name].detach().clone()
                self.parameters[name].copy_(mean)
                mean.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "means": dict(self.means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.means = dict(state["means"])

    def _follow(self) -> None:
        # A state is read before the weights are on the device that trains them.
        self.means = {name: mean.to(self.parameters[name].device) for name, mean in self.means.items()}
