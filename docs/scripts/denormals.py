"""What denormal numbers cost a training step on a CPU: dp-3 with the loss on its last iterate, on `simulated`.

    python docs/scripts/denormals.py             # SPEN_DATA names the folder of the data; two threads, 100 seconds

Prints milliseconds a batch over the course of training, as numbers come and with those below 1e-38 as zeros.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from statistics import median

import torch

from spen.tasks.denoising.build import build
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.sources import CropSource
from spen.training import flushed_denormals

BATCHES, WARM_UP = 80, 50


def train(source: CropSource) -> tuple[list[float], float]:
    """Milliseconds of every batch, and the loss of the last."""
    torch.manual_seed(0)
    regime = find_regime("simulated")
    recipe = find_recipe("dp-3:iterate_loss=last", regime.name)
    model, objective = build(recipe, regime)
    adam = torch.optim.Adam(model.parameters(), eps=recipe.schedule.epsilon)
    times, loss = [], torch.zeros(())
    for k, (x, target) in enumerate(source.batches(0)):
        adam.param_groups[0]["lr"] = recipe.schedule.learning_rate * min(1, (k + 1) / WARM_UP)
        began = time.perf_counter()
        adam.zero_grad()
        loss = objective(model, x, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.schedule.clip)
        adam.step()
        times.append(1000 * (time.perf_counter() - began))
    return times, float(loss.detach())


def main() -> None:
    torch.set_num_threads(2)
    source = CropSource(Crops(open_splits(find_regime("simulated")).train, (48, 64)), 4, BATCHES)
    print("batches        " + "".join(f"{first + 1:4d} to {first + 10:2d}" for first in range(0, BATCHES, 10)))
    for name, way in (("as they come", nullcontext), ("zeros", flushed_denormals)):
        with way():
            times, loss = train(source)
        medians = [median(times[first : first + 10]) for first in range(0, BATCHES, 10)]
        print(f"{name:15s}" + "".join(f"{m:10.0f}" for m in medians) + f"   last loss {loss:.3e}")


if __name__ == "__main__":
    main()
