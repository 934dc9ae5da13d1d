"""The same model trained three ways: without the descent, through it, and by the structured SVM.

    python examples/three_ways.py

Labels of a chain agree with their neighbours; single positions are too noisy to tell. Each way starts from the same
weights, takes the same number of updates and is asked for the same thing: the labels of unseen chains.
"""

from __future__ import annotations

import copy
import os

import torch
from torch import Tensor, nn

import spen
from spen.domains import Simplex
from spen.energies import EntropySmoothed, Linear
from spen.objectives import EndToEnd, Feedforward, StructuredHinge, log_loss
from spen.rules import Momentum

UPDATES = int(os.environ.get("SPEN_EXAMPLE_UPDATES", "120"))
LABELS, LENGTH = 4, 12


class Neighbours(spen.Energy):
    """−Σ_i ⟨y_i, P y_{i+1}⟩ with a learned table P of which labels like to stand side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Parameter(torch.zeros(LABELS, LABELS))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return -torch.einsum("bia,ac,bic->b", y[:, :-1], self.pair, y[:, 1:])


def chains(count: int) -> tuple[Tensor, Tensor]:
    """Chains of one label each, seen through noise."""
    truth = nn.functional.one_hot(torch.randint(LABELS, (count, 1)).expand(-1, LENGTH), LABELS).float()
    return truth + 1.5 * torch.randn(count, LENGTH, LABELS), truth


def hamming(y: Tensor, truth: Tensor) -> Tensor:
    return 0.5 * (y - truth).abs().flatten(1).sum(1)


def main() -> None:
    torch.manual_seed(0)
    (x, truth), (x_new, truth_new) = chains(256), chains(1000)
    fresh = spen.SPEN(
        features=nn.Linear(LABELS, LABELS),
        init=nn.Identity(),
        energy=EntropySmoothed(Linear() + Neighbours()),
        minimizer=spen.Minimizer(Simplex(), Momentum(10, 0.3, decay=0.25)),
    )
    ways = {
        "no descent": Feedforward(log_loss),
        "end to end": EndToEnd(log_loss),
        "structured SVM": StructuredHinge(hamming),
    }
    for name, objective in ways.items():
        model = copy.deepcopy(fresh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            objective(model, x, truth).backward()
            optimizer.step()
        with torch.no_grad():
            labels = objective.predict(model, x_new).argmax(-1)
        print(f"{name:15s} {100 * float((labels == truth_new.argmax(-1)).float().mean()):5.1f} % of new labels right")


if __name__ == "__main__":
    main()
