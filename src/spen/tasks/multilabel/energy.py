"""E(y; F(x)) = −⟨s(x), y⟩ + E^g(y; F(x)) − τ H(y): local terms linear in y, and a deep network on all labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from spen.energies import Energy, EntropySmoothed, Linear, Softplus, Sum
from spen.tasks.multilabel.features import LabelFeatures, scores_of


class LabelNetwork(Energy):
    """E^g(y; F) = w · σ(A_k … σ(A_1 y + C h + b_1) … + b_k), σ a softplus; Belanger and McCallum's global energy.

    ``context`` is the width of F's hidden layer h; with 0 the network depends on y alone.
    """

    def __init__(self, labels: int, hidden: Sequence[int] = (64,), *, context: int = 0) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("the global energy needs at least one hidden layer")
        self.first = nn.Linear(labels, hidden[0])
        self.context = nn.Linear(context, hidden[0], bias=False) if context else None
        self.onward = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(hidden))
        # The output's constant would have no gradient.
        self.last = nn.Linear(hidden[-1], 1, bias=False)
        self.activation = Softplus()

    def forward(self, y: Tensor, features: LabelFeatures) -> Tensor:  # (B, L) -> (B,)
        total = self.first(y)
        if self.context is not None:
            total = total + self.context(features.hidden)
        hidden = self.activation(total)
        for layer in self.onward:
            hidden = self.activation(layer(hidden))
        return self.last(hidden).squeeze(1)


class Present(Energy):
    """E(y) of the probabilities that labels are present, for y (B, L, 2) over pairs (absent, present)."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, y: Tensor, features: LabelFeatures) -> Tensor:  # (B, L, 2) -> (B,)
        return self.energy(y[..., 1], features)


def label_energy(network: LabelNetwork, *, entropy: float = 1.0, pairs: bool = False) -> EntropySmoothed:
    """Local + global − τH. Over the box, y is (B, L); with ``pairs``, over simplices {absent, present}, (B, L, 2).

    Without the global term and with τ = 1 the minimiser is sigmoid(s), the feed-forward answer.
    """
    terms = Sum(local=Linear(scores_of), labels=network)
    return EntropySmoothed(Present(terms) if pairs else terms, entropy, over="simplex" if pairs else "box")
