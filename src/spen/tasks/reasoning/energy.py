"""Networks whose hidden vectors belong to the parts of an answer: an energy sums a score of each, a baseline reads it.

h ← lift(y, x), then rounds of messages h ← h + f(h, messages), then E = Σ score(h). The rounds treat all parts alike,
so the weights do not depend on the size of the problem.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from spen.energies import Energy


def mlp(width: int, inputs: int | None = None) -> nn.Sequential:
    """A number for every vector; smooth, so that the energy has two derivatives. A last bias would have no gradient."""
    return nn.Sequential(nn.Linear(inputs or width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))


class Round(nn.Module):
    """h ← h + out(act(own(h) + incoming(h))); subclasses write ``incoming``, a sum of messages through ``back``."""

    def __init__(self, width: int, messages: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.back = nn.Linear(messages * width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def weigh(self, *messages: Tensor) -> list[Tensor]:
        """Each message through its own part of ``back``: before it is copied to several vectors, which costs less."""
        parts = self.back.weight.split(self.out.in_features, 1)
        return [nn.functional.linear(message, part) for message, part in zip(messages, parts, strict=True)]

    @abstractmethod
    def incoming(self, h: Tensor, context: Any) -> Tensor:
        """The sum of the weighed messages, of the shape of h."""

    def forward(self, h: Tensor, context: Any) -> Tensor:
        return h + self.out(nn.functional.silu(self.own(h) + self.incoming(h, context)))


class Network(nn.Module):
    """Hidden vectors of every part of the answer y, given x. ``repeats`` > 1 repeats the rounds with their weights."""

    inputs: int
    """How many numbers each part reads."""
    parts = 1
    """How many tensors ``forward`` returns."""

    def __init__(self, width: int, rounds: int, repeats: int = 1) -> None:
        super().__init__()
        self.width, self.repeats = width, repeats
        self.lift = nn.Linear(self.inputs, width)
        self.rounds = nn.ModuleList(self.round(width) for _ in range(rounds))

    @abstractmethod
    def round(self, width: int) -> Round:
        """One round of messages, with fresh weights."""

    @abstractmethod
    def planes(self, y: Tensor, x: Tensor) -> Tensor:
        """(B, …, inputs): what each part of the answer reads."""

    def context(self, y: Tensor, x: Tensor) -> Any:
        """What the rounds need beside h."""
        return None

    def scored(self, h: Tensor, context: Any) -> list[Tensor]:
        """The vectors that an energy scores."""
        return [h]

    def forward(self, y: Tensor, x: Tensor, step: Tensor | None = None) -> list[Tensor]:
        h = self.lift(self.planes(y, x))
        if step is not None:  # (B, width)
            h = h + step.view(len(step), *[1] * (h.dim() - 2), -1)
        context = self.context(y, x)
        for _ in range(self.repeats):
            for messages in self.rounds:
                h = messages(h, context)
        return self.scored(h, context)


class LearnedEnergy(Energy):
    """Σ score(h) over all parts of the answer. ``known_steps`` > 0 adds a learned vector of each step to h."""

    def __init__(self, network: Network, known_steps: int = 0) -> None:
        super().__init__()
        self.network = network
        self.scores = nn.ModuleList(mlp(network.width) for _ in range(network.parts))
        self.step = nn.Parameter(torch.zeros(known_steps, network.width)) if known_steps else None

    @property
    def knows_step(self) -> bool:
        return self.step is not None

    def forward(self, y: Tensor, features: Tensor, t: Tensor | None = None) -> Tensor:
        step = None if self.step is None or t is None else self.step[t]
        hidden = self.network(y, features, step)
        scores = [score(h).flatten(1).sum(1) for score, h in zip(self.scores, hidden, strict=True)]
        return torch.stack(scores).sum(0)


class Solver(nn.Module):
    """The baselines: the same messages without an energy. The first answer is read from x, the others are logits."""

    def __init__(self, network: Network, start: nn.Module) -> None:
        super().__init__()
        self.network, self.start = network, start
        self.read = nn.Linear(network.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.network(self.start(x), x)[0]).squeeze(-1)
