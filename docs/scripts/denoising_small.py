"""A recipe at a small size on a processor, to compare choices in a minute or two:

python docs/scripts/denoising_small.py dp-3 --batches 400 --learning-rate 2e-2 --set iterate_loss=last

60 built-in rooms, crops of 48×64, batches of 4, a width of 16, Adam with 50 batches of warm-up and a cosine; the PSNR
is of 8 whole development rooms, after each quarter of the batches.
"""

from __future__ import annotations

import argparse
import math

import torch

from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.experiment import build
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.priors import Observation
from spen.tasks.denoising.recipes import System, find_recipe, find_regime
from spen.tasks.denoising.scoring import observation, target

WARMUP, END, SIZE, BATCH = 50, 0.05, (48, 64), 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="options")
    a = parser.parse_args()
    torch.set_flush_denormal(True)
    recipe = find_recipe(a.recipe).with_options(width=16)
    if isinstance(recipe.method, System):
        recipe = recipe.with_options(gradient="exact")
    recipe = recipe.with_options(**dict(o.split("=", 1) for o in a.options))
    torch.manual_seed(a.seed)
    model, objective = build(recipe, find_regime("rooms"))
    crops = Crops(Rooms("train", 60), SIZE, seed=a.seed)
    rooms = Rooms("dev", 8)
    dev = [rooms.frame(i) for i in range(len(rooms))]
    optimizer = torch.optim.Adam(model.parameters(), a.learning_rate, eps=1e-14)

    def factor(update: int) -> float:
        rise = min(1.0, (update + 1) / WARMUP)
        return rise * (END + (1 - END) * 0.5 * (1 + math.cos(math.pi * update / a.batches)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for batch in range(a.batches):
        frame = crops.batch(0, batch * BATCH, BATCH)
        optimizer.zero_grad()
        objective(model, observation(frame), target(frame)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (batch + 1) % (a.batches // 4) == 0:
            scores = []
            for room in dev:
                x = Observation(*(part[None] for part in observation(room)))
                with torch.no_grad():
                    scores.append(float(psnr(objective.predict(model, x)[0], room.truth, room.scored)))
            print(f"{batch + 1:6d} {sum(scores) / len(scores):.2f} dB", flush=True)


if __name__ == "__main__":
    main()
