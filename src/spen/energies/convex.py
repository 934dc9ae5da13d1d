"""Input-convex networks (Amos et al.): E convex in y because every weight after the first layer is ≥ 0.

The weights are softplus(u) of a free parameter u, so they stay non-negative after every update of any optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies.compose import Energy
from spen.energies.smooth import Softplus
from spen.protocols import Features
from spen.tensors import flat


class NonNegativeLinear(nn.Module):
    """W z with W = softplus(u) ≥ 0 elementwise; no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.free = nn.Parameter(_free_weight((outputs, inputs), fan_in=inputs))

    @property
    def weight(self) -> Tensor:
        return F.softplus(self.free)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight)


class NonNegativeConv2d(nn.Module):
    """A convolution whose kernel is softplus(u) ≥ 0, "same" zero padding, with a free bias."""

    def __init__(self, inputs: int, outputs: int, size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.free = nn.Parameter(_free_weight((outputs, inputs, size, size), fan_in=inputs * size * size))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    @property
    def weight(self) -> Tensor:
        return F.softplus(self.free)

    def forward(self, z: Tensor) -> Tensor:
        return F.conv2d(z, self.weight, self.bias, padding="same")


class ICNN(Energy):
    """z_1 = σ(W_0 y + V_0 x + b_0), z_{k+1} = σ(W⁺_k z_k + U_k y + V_k x + b_k), E = ⟨w⁺, z_K⟩ + ⟨u, y⟩.

    W⁺, w⁺ ≥ 0 and σ is convex and non-decreasing (softplus), so E is convex in y; the dependence on the
    features x is free. ``inputs`` counts the coordinates of y, ``context`` those of the features (0: unused);
    ``select`` picks the context tensor out of the features.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int] = (64, 64),
        *,
        context: int = 0,
        select: Callable[[Features], Tensor] | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("an ICNN needs at least one hidden layer")
        self.from_y = nn.ModuleList(nn.Linear(inputs, width) for width in hidden)
        self.from_context = nn.ModuleList(nn.Linear(context, width, bias=False) for width in hidden if context)
        self.onward = nn.ModuleList(NonNegativeLinear(a, b) for a, b in pairwise(hidden))
        self.last = NonNegativeLinear(hidden[-1], 1)
        self.direct = nn.Linear(inputs, 1, bias=False)
        self.select = select
        self.activation = Softplus(temperature)

    def forward(self, y: Tensor, features: Features) -> Tensor:
        rows = flat(y)
        context = None
        if len(self.from_context):
            context = (features if self.select is None else self.select(features)).flatten(1)
        z: Tensor | None = None
        for k, layer in enumerate(self.from_y):
            total = layer(rows)
            if context is not None:
                total = total + self.from_context[k](context)
            if z is not None:
                total = total + self.onward[k - 1](z)
            z = self.activation(total)
        return (self.last(z) + self.direct(rows)).squeeze(1)


def _free_weight(shape: tuple[int, ...], fan_in: int) -> Tensor:
    # softplus(u) near 1/fan_in keeps the scale of a layer; all of one sign, a larger start would explode.
    target = torch.empty(shape).uniform_(0.5 / fan_in, 1.5 / fan_in)
    return torch.log(torch.expm1(target))
