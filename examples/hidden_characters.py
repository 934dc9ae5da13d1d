"""A transformer energy finds the hidden characters of a text. It is trained through eight steps of descent.

    python examples/hidden_characters.py            # half a minute; writes hidden_characters.png

Half of the characters are hidden, and y guesses them. Attention reads visible characters and guesses, so better guesses
lead to better ones. Fused attention can be differentiated once only, which is enough for finite differences.
"""

import os
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import spen
from spen.domains import Simplex
from spen.energies import EntropySmoothed
from spen.gradients import FiniteDifference
from spen.objectives import EndToEnd
from spen.rules import GradientDescent

UPDATES = int(os.environ.get("SPEN_EXAMPLE_UPDATES", "200"))
STEPS, LENGTH, WIDTH = 8, 48, 64
TEXT = " ".join(" ".join(topics.values()).lower().split())  # of Python's manual
LETTERS = sorted(letter for letter in set(TEXT) if TEXT.count(letter) > 200)
NUMBERS = torch.tensor([LETTERS.index(letter) for letter in TEXT if letter in LETTERS])
Features = tuple[Tensor, Tensor]  # characters as numbers, and which of them are hidden: (B, L) both


class TextEnergy(spen.Energy):
    """−Σ_hidden ⟨y_i, W h_i⟩, where h comes from attention over visible characters and guesses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(WIDTH**-0.5 * torch.randn(len(LETTERS), WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(2, LENGTH, WIDTH))  # of visible and of hidden characters
        self.trust = nn.Parameter(torch.tensor(0.1))  # in guesses: small at first, so that no descent diverges
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, y: Tensor, features: Features) -> Tensor:  # (B, L, letters) -> (B,)
        hidden, known = features[1][..., None], nn.functional.one_hot(features[0], len(LETTERS)).to(y)
        read = torch.where(hidden, self.trust * y, known) @ self.embed
        h = self.layers(read + torch.where(hidden, self.places[1], self.places[0]))
        return -(y * (h @ self.embed.T) * hidden).flatten(1).sum(1)


class Uniform(nn.Module):
    def forward(self, features: Features) -> Tensor:
        return torch.zeros(*features[0].shape, len(LETTERS))


def batch(numbers: Tensor, size: int) -> Features:
    characters = numbers[torch.randint(len(numbers) - LENGTH, (size, 1)) + torch.arange(LENGTH)]
    return characters, torch.rand(size, LENGTH) < 0.5


def nats(y: Tensor, features: Features) -> Tensor:  # -> (B,): −log y of the true character
    of_truth = y.gather(-1, features[0][..., None])[..., 0].clamp_min(1e-30).log()
    return -(of_truth * features[1]).sum(1) / features[1].sum(1).clamp_min(1)


def main() -> None:
    torch.manual_seed(0)
    minimizer = spen.Minimizer(Simplex(), GradientDescent(STEPS, 0.25, learn_rates=True), FiniteDifference())
    model = spen.SPEN(init=Uniform(), energy=EntropySmoothed(TextEnergy()), minimizer=minimizer)
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=3e-3), EndToEnd(nats)
    for _ in range(UPDATES):
        x = batch(NUMBERS[:-20_000], 16)
        optimizer.zero_grad()
        loss(model, x, x).backward()
        optimizer.step()
    x = batch(NUMBERS[-20_000:], 128)
    with torch.no_grad():
        curve = [float(nats(y, x).mean()) for y in model.eval()(x, steps=4 * STEPS).outputs]
    print(*(f"after {t:2d} steps {curve[t - 1]:.3f} nats" for t in (1, 2, 4, 8, 16, 32)), sep="\n")
    figure, axis = plt.subplots(figsize=(10.4, 3.4), layout="constrained")
    axis.semilogx(range(1, len(curve) + 1), curve)
    axis.set(xlabel=f"steps; {STEPS} in training", ylabel="nats for a hidden character")
    figure.savefig("hidden_characters.png", dpi=100)


if __name__ == "__main__":
    main()
