"""An energy that fused attention makes affordable: it has no second derivative, and finite differences need none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import spen
from benchmarks.ceilings import Attention
from benchmarks.problems import Problem
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import squared_error
from spen.rules import Momentum

CHANNELS = 32
_FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


class Layer(nn.Module):
    """h + attention(norm(h)), then h + MLP(norm(h))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.fused = heads, True

    def forward(self, h: Tensor) -> Tensor:  # (B, N, width)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(h)).chunk(3, -1)
        )
        with sdpa_kernel(_FUSED if self.fused else [SDPBackend.MATH]):
            mixed = F.scaled_dot_product_attention(queries, keys, values)
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        return h + self.down(F.gelu(self.up(self.second(h))))


class TransformerEnergy(Energy):
    """‖y − x‖² + Σ over positions of ⟨w, transformer(W y + position)⟩."""

    def __init__(self, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.enter = nn.Linear(CHANNELS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1, bias=False))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:  # (B, N, CHANNELS) twice -> (B,)
        h = self.enter(y) + self.positions
        for layer in self.layers:
            h = layer(h)
        return (y - features).square().flatten(1).sum(1) + self.last(h).flatten(1).sum(1)


def transformer(
    device: str,
    *,
    fused: bool,
    batch: int = 4,
    positions: int = 4096,
    width: int = 512,
    layers: int = 8,
    heads: int = 8,
    steps: int = 2,
) -> Problem:
    """Two steps of momentum on a sequence of vectors. ``fused=False`` uses the attention that double backprop can."""
    torch.manual_seed(0)
    energy = TransformerEnergy(positions, width, layers, heads)
    set_fused(energy, fused)
    rule = Momentum(steps, 0.1, decay=0.25, learn_rates=True)
    model = spen.SPEN(energy=energy, init=nn.Identity(), minimizer=spen.Minimizer(Reals(), rule, Exact()))
    x, target = torch.randn(batch, positions, CHANNELS), torch.randn(batch, positions, CHANNELS)
    return Problem(
        f"transformer, {'fused' if fused else 'unfused'} attention",
        {"batch": batch, "steps": steps, "positions": positions, "width": width, "layers": layers},
        model.to(device).eval(),
        squared_error,
        x.to(device),
        target.to(device),
        squash=_itself,
        decay=0.25,
        work=Attention(batch=batch, positions=positions, width=width, layers=layers, steps=steps),
        parts=batch,
    )


def set_fused(model: nn.Module, fused: bool) -> None:
    """Choose the attention of every layer."""
    for part in model.modules():
        if isinstance(part, Layer):
            part.fused = fused


def _itself(z: Tensor) -> Tensor:
    return z
