"""Networks over (cell, digit) that treat all digits alike, all cells alike, and rows, columns and boxes alike.

    h_cd ← h_cd + f(h_cd, Σ_{g ∋ c} a(Σ_{c' ∈ g} h_c'd), Σ_d' h_cd')

g runs over the row, the column and the box of a cell. Exchanging digits, rows within a band, bands, or rows with
columns exchanges the outputs in the same way, so what is learned of one cell is known of all. The weights do not depend
on the size of the board.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from spen.energies import Energy
from spen.tasks.reasoning.sudoku import BOXES, groups

__all__ = ["Exchange", "FeedforwardSolver", "PuzzleEnergy", "Start"]


class Exchange(nn.Module):
    """One round of messages: from cells to their groups and back, and between the digits of a cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.group = nn.Linear(width, width)
        self.cell = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.back = nn.Linear(2 * width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.act = nn.SiLU()

    def forward(self, h: Tensor, members: Tensor) -> Tensor:  # (B, cells, digits, width), (groups, cells)
        pooled = torch.einsum("gc,bcdw->bgdw", members, h)
        from_groups = torch.einsum("gc,bgdw->bcdw", members, self.act(self.group(pooled))) / 3
        from_cell = self.act(self.cell(h.sum(2, keepdim=True))).expand_as(h)
        return h + self.out(self.act(self.own(h) + self.back(torch.cat([from_groups, from_cell], -1))))


class Members(nn.Module):
    """Which cells are in which group, for each size of board."""

    def __init__(self) -> None:
        super().__init__()
        for side in BOXES:
            table = torch.zeros(3 * side, side * side)
            for g, cells in enumerate(groups(side)):
                table[g, list(cells)] = 1.0
            self.register_buffer(f"side{side}", table, persistent=False)

    def of(self, side: int) -> Tensor:
        """(groups, cells)"""
        return cast(Tensor, getattr(self, f"side{side}"))


class PuzzleEnergy(Energy):
    """Σ_cd u(h_cd) + Σ_gd v(Σ_{c ∈ g} h_cd) after ``rounds`` of messages over y and the clues.

    Where a clue is, the clue counts and not y. ``known_steps`` > 0 adds a learned vector of each step to h.
    """

    def __init__(self, width: int, rounds: int, known_steps: int = 0) -> None:
        super().__init__()
        self.lift = nn.Linear(2, width)
        self.rounds = nn.ModuleList(Exchange(width) for _ in range(rounds))
        self.members = Members()
        self.per_cell = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.per_group = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.step = nn.Parameter(torch.zeros(known_steps, width)) if known_steps else None

    @property
    def knows_step(self) -> bool:
        return self.step is not None

    def forward(self, y: Tensor, features: Tensor, t: Tensor | None = None) -> Tensor:
        given = features.sum(-1, keepdim=True)
        h = self.lift(torch.stack([features + (1 - given) * y, given.expand_as(y)], -1))
        if self.step is not None and t is not None:
            h = h + self.step[t][:, None, None]
        members = self.members.of(y.shape[-1])
        for exchange in self.rounds:
            h = exchange(h, members)
        pooled = torch.einsum("gc,bcdw->bgdw", members, h)
        return self.per_cell(h).flatten(1).sum(1) + self.per_group(pooled).flatten(1).sum(1)


class Start(nn.Module):
    """Logits to start from: ``sure`` at the digit of a clue, 0 where all digits are open."""

    def __init__(self, sure: float = 8.0) -> None:
        super().__init__()
        self.sure = sure

    def forward(self, features: Tensor) -> Tensor:
        return self.sure * features


class FeedforwardSolver(nn.Module):
    """The baselines: the same messages without an energy; logits from x.

    ``tied`` uses one set of weights in all rounds, as a recurrent network does; else every round has its own.
    """

    def __init__(self, width: int, rounds: int, *, tied: bool) -> None:
        super().__init__()
        self.lift = nn.Linear(2, width)
        self.exchanges = nn.ModuleList(Exchange(width) for _ in range(1 if tied else rounds))
        self.repeats = rounds if tied else 1
        self.members = Members()
        self.read = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(torch.stack([x, x.sum(-1, keepdim=True).expand_as(x)], -1))
        members = self.members.of(x.shape[-1])
        for _ in range(self.repeats):
            for exchange in self.exchanges:
                h = exchange(h, members)
        return self.read(h).squeeze(-1)
