"""Denoise an image with an energy you wrote: a data term, and a prior that learns which edges photographs have.

    python examples/denoise_image.py                # half a minute on two cores; writes denoise_image.png

Eight 3 × 3 filters begin as cosines. They, their weights and the rates of five steps of descent are learned from crops
of four photographs; a fifth is denoised, beside total variation with the best weight there is for it.
"""

import os

import matplotlib.pyplot as plt
import torch
from skimage import color, data
from skimage.restoration import denoise_tv_chambolle
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.objectives import EndToEnd, squared_error
from spen.rules import Momentum

UPDATES, SIGMA = int(os.environ.get("SPEN_EXAMPLE_UPDATES", "400")), 25 / 255


class Edges(spen.Energy):
    """E(y; x) = ‖y − x‖² + Σ_k w_k Σ_pixels log(1 + (f_k ∗ y)² / s²): an edge is expensive, a high one hardly more."""

    def __init__(self) -> None:
        super().__init__()
        waves = torch.cos(torch.pi / 3 * torch.outer(torch.arange(3), torch.arange(3) + 0.5))
        self.filters = nn.Parameter(torch.einsum("ai,bj->abij", waves, waves).flatten(0, 1)[1:, None] / 2)
        self.weights = nn.Parameter(torch.full((8,), -6.0))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:  # (B, 1, H, W) -> (B,)
        responses = nn.functional.conv2d(nn.functional.pad(y, [1] * 4, mode="reflect"), self.filters)
        prior = (responses / 0.05).square().log1p().sum((2, 3)) @ self.weights.exp()
        return (y - x).square().flatten(1).sum(1) + prior


def crop(photograph: Tensor, size: int = 40) -> Tensor:
    top, left = (int(torch.randint(n - size, ())) for n in photograph.shape)
    return photograph[None, top : top + size, left : left + size]


def psnr(y: Tensor, truth: Tensor) -> float:
    return float(-10 * (y - truth).square().mean().log10())


def main() -> None:
    torch.manual_seed(0)
    colours = (data.astronaut(), data.coffee(), data.chelsea(), data.rocket())
    photographs = [torch.from_numpy(color.rgb2gray(image)).float() for image in colours]
    minimizer = spen.Minimizer(Reals(), Momentum(steps=5, rate=0.2, decay=0.25, learn_rates=True))
    model = spen.SPEN(init=nn.Identity(), energy=Edges(), minimizer=minimizer)
    objective, optimizer = EndToEnd(squared_error), torch.optim.Adam(model.parameters(), lr=0.05)
    cooling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for _ in range(UPDATES):
        truth = torch.stack([crop(photographs[i]) for i in torch.randint(4, (8,))])
        optimizer.zero_grad()
        objective(model, truth + SIGMA * torch.randn_like(truth), truth).backward()
        optimizer.step()
        cooling.step()
    truth = torch.from_numpy(data.camera() / 255).float()[None, None, 60:252, 130:322]
    noisy = truth + SIGMA * torch.randn_like(truth)
    smooth = [torch.from_numpy(denoise_tv_chambolle(noisy.numpy(), k / 100, channel_axis=0)) for k in range(6, 18, 2)]
    images = {"truth": truth, "noisy": noisy, "total variation": max(smooth, key=lambda y: psnr(y, truth))}
    with torch.no_grad():
        images["your energy"] = model(noisy).output
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
    for axis, (name, image) in zip(axes, images.items(), strict=True):
        title = name if name == "truth" else f"{name}: {psnr(image, truth):.2f} dB"
        print(title)
        axis.imshow(image[0, 0], cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig("denoise_image.png", dpi=100)


if __name__ == "__main__":
    main()
