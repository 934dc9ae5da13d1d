"""½‖u − N(u)‖² with N a small U-Net: an energy that is low where a denoiser would change nothing."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies import Energy
from spen.tasks.denoising.priors import Observation


class _Block(nn.Module):
    """Two 3×3 convolutions with SiLU, added to the input: smooth, so that the energy has two derivatives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():  # a residual block starts as the identity
            self.second.weight.mul_(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(F.silu(self.first(F.silu(hidden))))


class UNet(nn.Module):
    """An image to an image of the same size: three scales of width, 2·width and 4·width channels."""

    def __init__(self, width: int = 32, blocks: int = 2, inputs: int = 1) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.enter = nn.Conv2d(inputs, width, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Sequential(*[_Block(w) for _ in range(blocks)], nn.Conv2d(w, wider, 2, stride=2))
            for w, wider in pairwise(widths)
        )
        self.bottom = nn.Sequential(*[_Block(widths[-1]) for _ in range(blocks)])
        self.rise = nn.ModuleList(nn.ConvTranspose2d(wider, w, 2, stride=2) for w, wider in pairwise(widths))
        self.up = nn.ModuleList(nn.Sequential(*[_Block(w) for _ in range(blocks)]) for w in widths[:-1])
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        # Each coarser scale halves the size: work on the next multiple of four, and cut the rest off again. Written
        # as 4·⌈n/4⌉, and the cut as negative padding, it can be exported for every size at once.
        right, below = 4 * ((width + 3) // 4) - width, 4 * ((height + 3) // 4) - height
        hidden = self.enter(F.pad(image, (0, right, 0, below), mode="replicate"))
        skips = []
        for down in self.down:
            for layer in down[:-1]:  # type: ignore[index]
                hidden = layer(hidden)
            skips.append(hidden)
            hidden = down[-1](hidden)  # type: ignore[index]
        hidden = self.bottom(hidden)
        for rise, up, skip in zip(reversed(self.rise), reversed(self.up), reversed(skips), strict=True):
            hidden = up(rise(hidden) + skip)
        return F.pad(self.leave(hidden), (0, -right, 0, -below))


class UNetPrior(Energy):
    """½‖N(s·y)‖², N the part of an image that a denoiser would take away; ``scale`` is s.

    With a bias-free square at the end, the energy is bounded below whatever N has learned.
    """

    def __init__(self, width: int = 32, blocks: int = 2, *, scale: float = 1.0) -> None:
        super().__init__()
        self.net = UNet(width, blocks)
        self.scale = scale

    def forward(self, y: Tensor, features: Observation) -> Tensor:
        # The mean depth says nothing about noise; without it the first layer works near zero.
        level = y.mean((-2, -1), keepdim=True)
        return 0.5 * self.net(self.scale * (y - level)).square().flatten(1).sum(1)
