"""Learn the forces between atoms: a network of their distances, trained on energies and on its own derivative.

    python examples/interatomic_forces.py           # seconds; writes interatomic_forces.png

Clusters of six atoms with a Morse potential, which the model does not know. A cluster has one energy and eighteen
forces: few clusters tell little by their energies alone. On a GPU the derivatives and their training are compiled.
"""

import os
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from spen.derivatives import Derivatives

UPDATES = int(os.environ.get("SPEN_EXAMPLE_UPDATES", "600"))
ATOMS, CLUSTERS = 6, 20


def morse(r: Tensor) -> Tensor:
    return (1 - torch.exp(-2 * (r - 1.2))) ** 2 - 1


class Pair(nn.Sequential):
    def forward(self, r: Tensor) -> Tensor:  # through radial basis functions
        return super().forward(torch.exp(-8 * (r[..., None] - torch.linspace(0.6, 3.6, 16)) ** 2)).squeeze(-1)


class Cluster(nn.Module):
    def __init__(self, pair: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.pair = pair or Pair(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, y: Tensor) -> Tensor:  # (B, atoms, 3) -> (B,)
        first, second = torch.triu_indices(ATOMS, ATOMS, offset=1)
        return self.pair((y[:, first] - y[:, second]).norm(dim=-1)).sum(1)


def clusters(count: int) -> Tensor:  # six places of a 3 × 3 × 3 grid each, shaken
    grid = 1.2 * torch.cartesian_prod(*[torch.arange(3.0)] * 3)
    places = torch.stack([torch.randperm(27)[:ATOMS] for _ in range(count)])
    return grid[places] + 0.4 * (torch.rand(count, ATOMS, 3) - 0.5)


def train(y: Tensor, energies: Tensor, slopes: Tensor, weight: float) -> nn.Module:
    torch.manual_seed(1)
    derivatives = Derivatives(Cluster())
    optimizer = torch.optim.Adam(derivatives.network.parameters(), lr=0.01)
    for _ in range(UPDATES):
        energy, slope = derivatives.gradient(y)
        loss = (energy - energies).square().mean() + weight * (slope - slopes).square().mean()
        optimizer.zero_grad()
        loss.backward()  # through the slope too
        optimizer.step()
    return derivatives.network


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a network is no work for two
    truth = Derivatives(Cluster(morse))
    y, new = clusters(CLUSTERS), clusters(200)
    known = truth.gradient(y)
    models = {"untrained": Cluster(), "energies": train(y, *known, 0.0), "energies and forces": train(y, *known, 10.0)}
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    right = truth.gradient(new)[1].flatten()
    for axis, (name, model) in zip(axes, models.items(), strict=True):
        found = Derivatives(model).gradient(new)[1].detach().flatten()
        print(f"{name:19s} force error {(found - right).square().mean().sqrt():.3f}")
        axis.plot([-5, 5], [-5, 5], "k--")
        axis.plot(-right, -found, ".", markersize=2)
        axis.set(title=name, xlabel="true force", ylabel="learned force", xlim=(-5, 5), ylim=(-5, 5))
    figure.savefig("interatomic_forces.png", dpi=100)


if __name__ == "__main__":
    main()
