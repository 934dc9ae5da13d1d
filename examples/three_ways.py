"""The same model trained three ways: without the descent, through it, and by the structured SVM.

    python examples/three_ways.py                   # half a minute; writes three_ways.png

Labels of a chain agree with their neighbours; single positions are too noisy to tell. Each way starts from the same
weights, takes the same number of updates and is asked for the same thing: the labels of unseen chains.
"""

import copy
import os

import matplotlib.pyplot as plt
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
    ways = {"no descent": Feedforward(log_loss), "end to end": EndToEnd(log_loss)}
    ways["structured SVM"] = StructuredHinge(hamming)
    pictures = {"truth": truth_new, "seen": x_new}
    for name, objective in ways.items():
        model = copy.deepcopy(fresh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            objective(model, x, truth).backward()
            optimizer.step()
        with torch.no_grad():
            found = objective.predict(model, x_new)
        share = 100 * float((found.argmax(-1) == truth_new.argmax(-1)).float().mean())
        print(f"{name:15s} {share:5.1f} % of new labels right")
        pictures[f"{name}: {share:.1f} %"] = found
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.4), layout="constrained")
    for axis, (title, y) in zip(axes, pictures.items(), strict=True):
        axis.imshow(y[:18].argmax(-1), cmap="Set2", vmax=7, aspect="auto")  # a row is a chain, a colour is a label
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig("three_ways.png", dpi=100)


if __name__ == "__main__":
    main()
