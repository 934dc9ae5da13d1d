"""Sequences of 40 lengths: what Auto's choosing costs where every batch has a shape of its own.

    python -m benchmarks.lengths

Every length twice, in random order; total seconds and calls of the energy, Auto() against Exact(), in turns.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spen
from benchmarks.ceilings import wait
from benchmarks.results import parser_of, write_measured
from benchmarks.table import markdown
from spen.descent.potential import Potential
from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed
from spen.gradients import Auto, Exact, GradientStrategy
from spen.objectives import EndToEnd, log_loss
from spen.rules import GradientDescent

INPUTS, CLASSES, STEPS = 16, 8, 10
STRATEGIES: dict[str, Callable[[], GradientStrategy]] = {"Exact()": Exact, "Auto()": Auto}


class Chain(Energy):
    """−⟨scores, y⟩ + Σ of a small network on three neighbours."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.near = nn.Conv1d(CLASSES, width, 3, padding=1)
        self.last = nn.Linear(width, 1, bias=False)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:  # (B, L, CLASSES) twice -> (B,)
        h = F.softplus(self.near(y.transpose(1, 2))).transpose(1, 2)
        return self.last(h).flatten(1).sum(1) - (y * features).flatten(1).sum(1)


@contextmanager
def counted() -> Iterator[list[int]]:
    """How often energies are evaluated within. The energy itself must not change: that would make programs stale."""
    calls, plain = [0], Potential.__call__

    def call(potential: Potential, *given: Any, **named: Any) -> Tensor:
        calls[0] += 1
        return plain(potential, *given, **named)

    Potential.__call__ = call  # type: ignore[method-assign,assignment]
    try:
        yield calls
    finally:
        Potential.__call__ = plain  # type: ignore[method-assign]


def train(strategy: GradientStrategy, lengths: Sequence[int], device: str, batch: int) -> tuple[float, int]:
    """(seconds, calls of the energy) of a step of training for each length, by a fresh model."""
    torch.manual_seed(0)
    minimizer = spen.Minimizer(Simplex(), GradientDescent(STEPS, 0.3, learn_rates=True), strategy)
    energy = EntropySmoothed(Chain())
    model = spen.SPEN(features=nn.Linear(INPUTS, CLASSES), init=nn.Identity(), energy=energy, minimizer=minimizer).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    objective = EndToEnd(log_loss)
    batches = []
    for length in lengths:
        gold = F.one_hot(torch.randint(0, CLASSES, (batch, length)), CLASSES).float()
        batches.append((torch.randn(batch, length, INPUTS).to(device), gold.to(device)))
    wait(torch.device(device))
    began = time.perf_counter()
    with counted() as calls:
        for x, target in batches:
            optimizer.zero_grad()
            objective(model, x, target).backward()
            optimizer.step()
    wait(torch.device(device))
    return time.perf_counter() - began, calls[0]


def shuffled(first: int, last: int) -> list[int]:
    """Every length from first to last, in random order, twice."""
    chance = random.Random(0)
    return [n for _ in range(2) for n in chance.sample(range(first, last + 1), last + 1 - first)]


def main(arguments: Sequence[str] | None = None) -> float:
    parser = parser_of("lengths", __doc__)
    parser.add_argument("--first", type=int, default=11)
    parser.add_argument("--last", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    lengths = shuffled(options.first, options.last)
    train(Exact(), lengths[:3], options.device, options.batch)  # libraries are loaded
    seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    calls: dict[str, int] = {}
    for _ in range(options.rounds):
        for name, make in STRATEGIES.items():
            taken, calls[name] = train(make(), lengths, options.device, options.batch)
            seconds[name].append(taken)
    exact, auto = (statistics.median(seconds[name]) for name in STRATEGIES)
    write_measured(options.out, options.device, seconds=seconds, calls=calls, ratio=auto / exact, lengths=lengths)
    columns = {"strategy": list(STRATEGIES), "seconds": [f"{s:.2f}" for s in (exact, auto)]}
    columns["calls of the energy"] = [f"{calls[name]:,}" for name in STRATEGIES]
    print(markdown(columns))
    print(
        f"Auto takes {auto / exact:.2f} of the time of Exact for {len(lengths)} batches of {len(set(lengths))} lengths"
    )
    return auto / exact


if __name__ == "__main__":
    main()
