"""Test problems with known solutions: energies over a domain, and their exact minimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spen.domains import Box, Reals, Simplex, project_simplex
from spen.energies import Energy, EntropySmoothed, Linear
from spen.protocols import Domain, Features


class Quadratic(Energy):
    """½ (y − c)ᵀ A (y − c) with one A for all examples; the features are c."""

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, y: Tensor, features: Features) -> Tensor:
        gap = y - features
        return 0.5 * ((gap @ self.matrix) * gap).flatten(1).sum(1)


@dataclass(frozen=True)
class Problem:
    """min over ``domain`` of ``energy(·, features)`` is ``answer``."""

    name: str
    domain: Domain
    energy: Energy
    features: Tensor
    start: Tensor
    answer: Tensor


def known_problems() -> list[Problem]:
    """Quadratics over the reals, the box and the simplex, and a linear energy with entropy, in double precision."""
    batch, size = 3, 5
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = random(size, size)
    curved = root @ root.T / size + 0.5 * torch.eye(size, dtype=torch.float64)
    sphere = torch.eye(size, dtype=torch.float64)
    center, zero = random(batch, size), torch.zeros(batch, size, dtype=torch.float64)
    scores = random(batch, 2, size)
    diagonal = torch.diag(torch.linspace(0.5, 2, size, dtype=torch.float64))
    box, simplex = Box("projected"), Simplex("projected")
    problems = [
        Problem("quadratic over the reals", Reals(), Quadratic(curved), center, zero, center),
        Problem("quadratic over the box", box, Quadratic(diagonal), center, zero + 0.5, center.clamp(0, 1)),
        Problem("distance over the simplex", simplex, Quadratic(sphere), center, zero, project_simplex(center)),
    ]
    energy, start, answer = EntropySmoothed(Linear(), 0.5), torch.zeros_like(scores), torch.softmax(scores / 0.5, -1)
    for update in ("logits", "through_logits", "mirror", "projected"):
        name = f"linear with entropy, {update}"
        problems.append(Problem(name, Simplex(update), energy, scores, start, answer))
    return problems
