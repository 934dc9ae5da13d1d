"""Small models over every domain, for the tests of export."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

import spen
from spen.domains import Simplex
from spen.energies import EntropySmoothed, Linear, Softplus
from spen.protocols import Domain, StepRule


class Scores(NamedTuple):
    """F(x)."""

    scores: Tensor  # (B, n, 4)
    scale: Tensor  # (B,)


class Chain(spen.Energy):
    """A network on neighbours: its gradient depends on y and on the features, and on neither linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Linear(8, 6)
        self.last = nn.Linear(6, 1, bias=False)
        self.bend = Softplus(3.0)

    def forward(self, y: Tensor, features: Scores) -> Tensor:
        pairs = torch.cat([y[:, :-1], y[:, 1:]], -1)
        return features.scale * self.last(self.bend(self.pair(pairs))).sum((1, 2))


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Scores:
        return Scores(self.layer(x), 1 + x.square().mean((1, 2)))


class Begin(nn.Module):
    def forward(self, features: Scores) -> Tensor:
        return features.scores


def chain(domain: Domain, rule: StepRule, **options: object) -> spen.SPEN:
    """x (B, n, 3) → y (B, n, 4)."""
    torch.manual_seed(1)
    energy = Linear(lambda f: f.scores) + Chain()
    # A projection reaches the edge of a simplex: there the gradient of an entropy is infinite and the last bit decides.
    inside = isinstance(domain, Simplex) and domain.update != "projected"
    smooth = EntropySmoothed(energy, 0.5) if inside else energy + Pull()
    return spen.SPEN(
        features=Read(),
        init=Begin(),
        energy=smooth,
        minimizer=spen.Minimizer(domain, rule, **options),  # type: ignore[arg-type]
    )


class Pull(spen.Energy):
    """‖y‖²: a minimum for a chain over the reals, and one within the edges of a box or a simplex."""

    def forward(self, y: Tensor, features: Scores) -> Tensor:
        return y.square().flatten(1).sum(1)
