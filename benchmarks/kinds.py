"""Six kinds of energies: the deep prior, a residual net, attention, a graph, role labelling, label sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spen
from benchmarks.problems import FirstImage, Problem, deep_prior
from benchmarks.small import label_sets, srl
from spen.domains import Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Scaled, Sum
from spen.gradients import Exact
from spen.objectives import log_loss, squared_error
from spen.rules import GradientDescent, Momentum
from spen.tasks.denoising.energy import DataTerm, Observation

FULL, SMALL, TOY = "full", "small", "toy"


class ResidualPrior(Energy):
    """Convolutions around GroupNorm and softplus, half the size and back by strides, each around a shortcut."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(3))
        self.block = nn.Conv2d(channels, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1)
        self.last = nn.Conv2d(channels, 1, 1)

    def forward(self, y: Tensor, features: Observation) -> Tensor:  # (B, 1, H, W) -> (B,)
        h = self.enter(y)
        h = h + self.block(F.softplus(self.norms[0](h)))
        half = F.softplus(self.norms[1](self.down(h)))
        h = h + self.up(half)
        return self.last(F.softplus(self.norms[2](h))).flatten(1).mean(1)


def residual(
    device: str, *, batch: int = 16, height: int = 96, width: int = 128, steps: int = 5, channels: int = 32
) -> Problem:
    """‖y − x‖² plus a residual net with norms, strides and a transposed convolution; momentum on ℝⁿ."""
    torch.manual_seed(0)
    prior = Scaled(ResidualPrior(channels, max(1, channels // 4)), 10.0, learned=True)
    rule = Momentum(steps, 0.2, decay=0.25, learn_rates=True)
    minimizer = spen.Minimizer(Reals(), rule, Exact())
    model = spen.SPEN(energy=Sum(local=DataTerm(), prior=prior), init=FirstImage(), minimizer=minimizer)
    truth = F.interpolate(torch.rand(batch, 1, max(2, height // 12), max(2, width // 12)), (height, width))
    image = (truth + 0.07 * torch.randn_like(truth)).to(device)
    return Problem(
        "residual net",
        {"batch": batch, "height": height, "width": width, "steps": steps, "channels": channels},
        model.to(device).eval(),
        squared_error,
        Observation(image, torch.ones_like(image)),
        truth.to(device),
        squash=_itself,
        decay=0.25,
    )


class Mixing(nn.Module):
    """h + attention(norm(h)), then h + MLP(norm(h)), in operations that differentiate as often as one likes."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads = heads

    def forward(self, h: Tensor) -> Tensor:  # (B, N, width)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(h)).chunk(3, -1)
        )
        weights = torch.softmax(queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5, -1)
        h = h + self.out((weights @ values).transpose(1, 2).flatten(2))
        return h + self.down(F.gelu(self.up(self.second(h))))


class AttentionEnergy(Energy):
    """−⟨scores, y⟩ + Σ over positions of ⟨w, transformer(W y + position)⟩."""

    def __init__(self, positions: int, classes: int, width: int, heads: int, layers: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(classes, width)
        self.positions = nn.Parameter(0.3 * torch.randn(positions, width))
        self.layers = nn.Sequential(*(Mixing(width, heads) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1, bias=False))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:  # (B, N, classes) twice -> (B,)
        h = self.layers(self.enter(y) + self.positions)
        return self.last(h).flatten(1).sum(1) - (y * features).flatten(1).sum(1)


def attention(
    device: str,
    *,
    batch: int = 32,
    positions: int = 128,
    classes: int = 16,
    width: int = 64,
    heads: int = 4,
    steps: int = 8,
    inputs: int = 32,
) -> Problem:
    """Two layers of attention over simplices, smoothed by their entropy."""
    torch.manual_seed(0)
    energy = AttentionEnergy(positions, classes, width, heads)
    sizes = {"batch": batch, "positions": positions, "classes": classes, "width": width, "steps": steps}
    return _labelling("attention", sizes, energy, (batch, positions, classes, inputs), steps, device)


class GraphEnergy(Energy):
    """−⟨scores, y⟩ + Σ over edges (i, j) of MLP(y_i, y_j)."""

    ends: Tensor  # (2, edges)

    def __init__(self, nodes: int, edges: int, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("ends", torch.randint(0, nodes, (2, edges)))
        self.pair = nn.Sequential(nn.Linear(2 * classes, width), nn.Softplus(), nn.Linear(width, 1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:  # (B, nodes, classes) twice -> (B,)
        pairs = torch.cat([y.index_select(1, self.ends[0]), y.index_select(1, self.ends[1])], -1)
        return self.pair(pairs).flatten(1).sum(1) - (y * features).flatten(1).sum(1)


def graph(
    device: str,
    *,
    batch: int = 32,
    nodes: int = 200,
    edges: int = 600,
    classes: int = 8,
    width: int = 32,
    steps: int = 10,
    inputs: int = 32,
) -> Problem:
    """Labels of nodes that two gathers and a small network on every edge tie together."""
    torch.manual_seed(0)
    energy = GraphEnergy(nodes, edges, classes, width)
    sizes = {"batch": batch, "nodes": nodes, "edges": edges, "classes": classes, "steps": steps}
    return _labelling("graph", sizes, energy, (batch, nodes, classes, inputs), steps, device)


def _labelling(
    name: str, sizes: dict[str, int], energy: Energy, shape: tuple[int, int, int, int], steps: int, device: str
) -> Problem:
    """A linear F whose scores are the start too, entropy, ten steps or so in logits, the log loss."""
    batch, places, classes, inputs = shape
    rule = GradientDescent(steps, 0.3, learn_rates=True)
    model = spen.SPEN(
        features=nn.Linear(inputs, classes),
        init=nn.Identity(),
        energy=EntropySmoothed(energy, 0.5, learned=True),
        minimizer=spen.Minimizer(Simplex("logits"), rule, Exact()),
    )
    x = torch.randn(batch, places, inputs)
    target = F.one_hot(torch.randint(0, classes, (batch, places)), classes).float()
    return Problem(name, sizes, model.to(device).eval(), log_loss, x.to(device), target.to(device), squash=_softmax)


def _itself(z: Tensor) -> Tensor:
    return z


def _softmax(z: Tensor) -> Tensor:
    return torch.softmax(z, -1)


_MAKERS = {
    "deep-prior": deep_prior,
    "residual": residual,
    "attention": attention,
    "graph": graph,
    "srl": srl,
    "label-sets": label_sets,
}
KINDS = list(_MAKERS)
_SIZES: dict[str, dict[str, dict[str, int]]] = {
    SMALL: {
        "deep-prior": {"batch": 2, "height": 48, "width": 64},
        "residual": {"batch": 2, "height": 48, "width": 64},
        "attention": {"batch": 4, "positions": 64},
        "graph": {"batch": 8},
        "srl": {"batch": 16, "roles": 20, "words": 50, "vocabulary": 2000},
        "label-sets": {},
    },
    TOY: {
        "deep-prior": {"batch": 2, "height": 12, "width": 16, "channels": 4, "steps": 3},
        "residual": {"batch": 2, "height": 8, "width": 12, "channels": 4, "steps": 2},
        "attention": {"batch": 2, "positions": 5, "classes": 3, "width": 8, "heads": 2, "steps": 2, "inputs": 4},
        "graph": {"batch": 2, "nodes": 6, "edges": 9, "classes": 3, "width": 4, "steps": 2, "inputs": 4},
        "srl": {"batch": 2, "candidates": 4, "roles": 8, "words": 8, "vocabulary": 50},
        "label-sets": {"batch": 4, "inputs": 20, "labels": 6},
    },
}


def make(kind: str, device: str, size: str = FULL) -> Problem:
    """A problem of this kind: ``full`` for a GPU, ``small`` for a CPU, ``toy`` for tests."""
    if kind not in _MAKERS:
        raise ValueError(f"there is no kind {kind}; there are {', '.join(KINDS)}")
    return _MAKERS[kind](device, **_SIZES.get(size, {}).get(kind, {}))  # type: ignore[operator]
