"""Where the order of Table 1 comes from: holes and edges.

python docs/scripts/denoising_order.py simulated --every 10

BM3D and total variation on every tenth test frame, with holes filled before they filter, as everywhere here, and with
the zeros that the sensor reports there; and how much of each system's squared error lies off surfaces: within two
pixels of a depth edge or beside a missing reading.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from spen.tasks.denoising.baselines import BM3D, TotalVariation
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.experiment import load_run, open_splits
from spen.tasks.denoising.metrics import mean_over_frames, psnr
from spen.tasks.denoising.priors import Observation
from spen.tasks.denoising.recipes import find_regime
from spen.tasks.denoising.scoring import observation


def line(name: str, frames: list[Frame], answers: list[torch.Tensor]) -> str:
    """PSNR, PSNR on surfaces, share of the squared error off them."""
    scores = [
        mean_over_frames(
            torch.stack([psnr(y, f.truth, getattr(f, part)) for y, f in zip(answers, frames, strict=True)])
        )
        for part in ("scored", "surface")
    ]
    errors = [((y - f.truth).square(), f) for y, f in zip(answers, frames, strict=True)]
    every, off = (sum(float(e[mask(f)].sum()) for e, f in errors) for mask in (_scored, _off_surface))
    return f"{name:28s} {scores[0]:6.2f} {scores[1]:6.2f}   {off / every:4.0%} of the squared error off surfaces"


def _scored(frame: Frame) -> torch.Tensor:
    return frame.scored


def _off_surface(frame: Frame) -> torch.Tensor:
    return frame.scored & ~frame.surface


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"))
    parser.add_argument("--rows", default="foe-20+,dp-3,convnet+")
    a = parser.parse_args()
    test = open_splits(find_regime(a.data)).test
    frames = [test.frame(i) for i in range(0, len(test), a.every)]
    share = (
        torch.cat([_off_surface(f).flatten() for f in frames]).sum()
        / torch.cat([f.scored.flatten() for f in frames]).sum()
    )
    print(f"{len(frames)} frames; {float(share):.0%} of the scored pixels lie off surfaces")
    for kind in ("bm3d", "tv"):
        options = json.loads((a.runs / a.data / kind / "seed-0" / "chosen.json").read_text(encoding="utf-8"))["options"]
        method = (BM3D if kind == "bm3d" else TotalVariation)(**options)
        for holes in ("filled", "as zeros"):
            answers = []
            for frame in frames:
                valid = frame.valid[0].numpy()
                seen = valid if holes == "filled" else np.ones_like(valid)
                answers.append(torch.from_numpy(method.denoise(frame.noisy[0].numpy(), seen))[None])
            print(line(f"{kind}, holes {holes}", frames, answers), flush=True)
    for row in a.rows.split(","):
        denoise, _ = load_run(a.runs / a.data / row / "seed-0")
        answers = [denoise(Observation(*(part[None] for part in observation(frame))))[0] for frame in frames]
        print(line(row, frames, answers), flush=True)


if __name__ == "__main__":
    main()
