"""Where the order of Table 1 comes from: holes and edges.

python docs/scripts/denoising_order.py simulated --every 10
python docs/scripts/denoising_order.py redkitchen --every 6 --rows ""    # the readings alone

Rows of a table on every tenth test frame, and how much of each one's squared error lies off surfaces: within two pixels
of a depth edge or beside a missing reading. BM3D and total variation also with the zeros that the sensor reports in
holes, which are filled before they filter everywhere else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from spen.models import open_model
from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.data import Subset
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.metrics import clamped_psnr
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.train import evaluate


def line(name: str, denoise: Denoise, frames: Subset) -> str:
    """PSNR, PSNR on surfaces, share of the squared error off them."""
    answers: list[torch.Tensor] = []

    def remembered(x: Observation) -> torch.Tensor:
        answers.append(denoise(x))
        return answers[-1]

    scores = evaluate(remembered, frames)
    every = off = 0.0
    for index, answer in enumerate(answers):
        frame = frames.frame(index)
        error = (answer[0] - frame.truth).square()
        every += float(error[frame.scored].sum())
        off += float(error[frame.scored & ~frame.surface].sum())
    psnr, surface = scores["psnr"], scores["surface_psnr"]
    return f"{name:28s} {psnr:6.2f} {surface:6.2f}   {off / every:4.0%} of the squared error off surfaces"


def holes(frames: Subset) -> str:
    """What zeros do where a reading or the truth is missing, in the PSNR of the authors' code."""
    unread = unknown = scores = shares = 0.0
    for frame in map(frames.frame, range(len(frames))):
        known = (frame.noisy > 0) & (frame.truth > 0)
        error = (frame.noisy - frame.truth).square()
        unread += float((frame.noisy == 0).float().mean())
        unknown += float((frame.truth == 0).float().mean())
        shares += float(error[~known].sum() / error.sum())
        scores += float(clamped_psnr(frame.noisy, frame.truth))
    unread, unknown, shares, scores = (total / len(frames) for total in (unread, unknown, shares, scores))
    return (
        f"{unread:.1%} of the pixels have no reading, {unknown:.1%} no truth; with zeros there the readings have "
        f"{scores:.2f} dB over every pixel, and these pixels hold {shares:.2%} of their squared error"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"))
    parser.add_argument("--rows", default="bm3d,tv,foe-20+,dp-3,convnet+")
    a = parser.parse_args()
    test = open_splits(find_regime(a.data)).test
    frames = Subset(test, list(range(0, len(test), a.every)))
    masks = [(frame.scored, frame.surface) for frame in map(frames.frame, range(len(frames)))]
    share = sum(int((s & ~f).sum()) for s, f in masks) / sum(int(s.sum()) for s, _ in masks)
    print(f"{len(frames)} frames; {share:.0%} of the scored pixels lie off surfaces")
    print(holes(frames))
    for row in filter(None, a.rows.split(",")):
        denoise = open_model(a.runs / a.data / row / "seed-0").denoise
        print(line(row, denoise, frames), flush=True)
        if row in ("bm3d", "tv"):

            def unfilled(x: Observation, denoise: Denoise = denoise) -> torch.Tensor:
                return denoise(x._replace(seen=torch.ones_like(x.seen)))

            print(line(f"{row}, holes as zeros", unfilled, frames), flush=True)


if __name__ == "__main__":
    main()
