"""A recipe at a small size on a processor, to compare choices in a minute or two:

python docs/scripts/denoising_small.py dp-3 --batches 400 --learning-rate 2e-2 --set iterate_loss=last

60 built-in rooms (`--rooms`), crops of 48×64, batches of 4, a width of 16, Adam with 50 batches of warm-up and a
cosine; the PSNR is of 8 whole development rooms, all scored pixels and surfaces, after each quarter of the batches
(`--looks`). bm3d and tv choose their number on 8 others. `--lateral 0` takes the jitter out of the sensor, which moves
edges. `--curvature` adds the mean loss since the last look and the largest curvature of E at the truth of four crops:
a descent with rate r and momentum β leaves a minimum that is more curved than 2(1 + β)/r.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from spen.tasks.denoising.baselines.classical import CANDIDATES, mean_psnr, tune
from spen.tasks.denoising.build import build
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Rooms, Subset
from spen.tasks.denoising.losses import observation, target
from spen.tasks.denoising.methods import Classical, System
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import STRENGTH_30DB_ROOMS, find_regime
from spen.tasks.denoising.sensor import Sensor
from spen.tasks.denoising.train import evaluate

WARMUP, END, SIZE, BATCH = 50, 0.05, (48, 64), 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", type=int, default=60)
    parser.add_argument("--looks", type=int, default=4)
    parser.add_argument("--curvature", action="store_true")
    parser.add_argument("--lateral", type=float, default=Sensor().lateral)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="options")
    a = parser.parse_args()
    sensor = Sensor(STRENGTH_30DB_ROOMS, lateral=a.lateral)
    rooms = Rooms("dev", 16, sensor=sensor)
    dev = Subset(rooms, list(range(8)))
    recipe = find_recipe(a.recipe)
    if isinstance(recipe.method, Classical):
        best, _ = tune([rooms.frame(i) for i in range(8, 16)], CANDIDATES[recipe.method.kind, False])
        frames = [dev.frame(i) for i in range(len(dev))]
        print(best, f"{mean_psnr(best, frames):.2f} dB, surfaces {mean_psnr(best, frames, surface=True):.2f} dB")
        return
    torch.set_flush_denormal(True)
    recipe = recipe.with_options(width=16)
    if isinstance(recipe.method, System):
        recipe = recipe.with_options(gradient="exact")
    recipe = recipe.with_options(**dict(o.split("=", 1) for o in a.options))
    torch.manual_seed(a.seed)
    model, objective = build(recipe, find_regime("rooms"))
    crops = Crops(Rooms("train", a.rooms, sensor=sensor), SIZE, seed=a.seed)
    optimizer = torch.optim.Adam(model.parameters(), a.learning_rate, eps=1e-14)

    def factor(update: int) -> float:
        rise = min(1.0, (update + 1) / WARMUP)
        return rise * (END + (1 - END) * 0.5 * (1 + math.cos(math.pi * update / a.batches)))

    few = Crops(rooms, SIZE).batch(0, 0, BATCH)
    losses: list[float] = []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for batch in range(a.batches):
        frame = crops.batch(0, batch * BATCH, BATCH)
        optimizer.zero_grad()
        loss = objective(model, observation(frame), target(frame))
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (batch + 1) % (a.batches // a.looks) == 0:
            with torch.no_grad():
                scores = evaluate(lambda x: objective.predict(model, x), dev)
            more = ""
            if a.curvature:
                most = curvature(model.energy, model.features(observation(few)), few.truth)
                more = f", loss {statistics.fmean(losses):.3g}, curvature {most:.0f}"
                losses.clear()
            print(f"{batch + 1:6d} {scores['psnr']:.2f} dB, surfaces {scores['surface_psnr']:.2f} dB{more}", flush=True)


def curvature(energy: nn.Module, features: Any, y: Tensor, products: int = 30) -> float:
    """The largest eigenvalue of ∇²E over the examples, by power iteration; it is one block of each example."""
    y = y.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(y, features).sum(), y, create_graph=True)
    vector = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    size = vector.flatten(1).norm(dim=1)
    for _ in range(products):
        vector = vector / size.clamp_min(1e-30)[:, None, None, None]
        (vector,) = torch.autograd.grad(slope, y, vector, retain_graph=True)
        size = vector.flatten(1).norm(dim=1)
    return float(size.max())


if __name__ == "__main__":
    main()
