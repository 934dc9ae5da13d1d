"""Milliseconds of a training step of spen-best on grey images: loss, backward pass, Adam.

python docs/scripts/unet_step.py --device cuda

Every gradient and width named, one after another, on random images. The host's time is what it took to ask for the
steps; where that is nearly all of it, the host is what holds the device up.
"""

from __future__ import annotations

import argparse
import time

import torch

from spen.tasks.denoising.build import build
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.losses import Target
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime


def step_time(gradient: str, width: int, batch: int, size: int, repeats: int, device: str) -> tuple[float, float]:
    """Milliseconds of a step, and of the host's part in it."""
    torch.manual_seed(0)
    recipe = find_recipe("spen-best", "gaussian").with_options(gradient=gradient, width=width)
    model, objective = build(recipe, find_regime("gaussian"))
    model = model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-5, fused=device == "cuda")
    image = torch.rand(batch, 1, size, size, device=device)
    seen = torch.ones_like(image)
    target = Target(image + 0.1 * torch.randn_like(image), seen)

    def steps(count: int) -> tuple[float, float]:
        began = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            objective(model, Observation(image, seen), target).backward()
            optimizer.step()
        asked = time.perf_counter() - began
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / count, 1e3 * asked / count

    steps(6)  # compiled, captured, kernels chosen
    return steps(repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gradients", default="written-bf16,written-compiled")
    parser.add_argument("--widths", default="48,64")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=60)
    a = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    for width in a.widths.split(","):
        for gradient in a.gradients.split(","):
            whole, host = step_time(gradient, int(width), a.batch, a.size, a.repeats, a.device)
            print(f"width {width}, {gradient}: {whole:.2f} ms, of which the host asks for {host:.2f}", flush=True)


if __name__ == "__main__":
    main()
