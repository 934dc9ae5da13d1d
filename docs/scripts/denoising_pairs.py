"""The orderings of Table 1 that the paper's figures show, in trained rows: holds, fails or within error.

    python docs/scripts/denoising_pairs.py redkitchen --runs runs/table1 --every 4
    python docs/scripts/denoising_pairs.py redkitchen --runs runs/paper --rows paper --measure clamped

Every finished run is scored on every fourth test frame, and the scores are kept beside it. The difference of two rows
is that of the seeds that both have, frame by frame; bm3d, which learns nothing, counts for all seeds. The
interval of 95 % is a bootstrap over groups of five such frames, since neighbouring frames are alike, and over seeds,
widened because there are few of both. A row as printed is compared with rows as printed, and with the baselines.
`psnr` is over scored pixels, `clamped` that of the authors' code, over every pixel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spen.models import open_model
from spen.tasks.denoising.data import Subset
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.losses import planes
from spen.tasks.denoising.metrics import clamped_psnr, psnr
from spen.tasks.denoising.recipes import RECIPES
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.reproduce import DETERMINISTIC
from spen.tasks.tables import run_folder

PAIRS = (  # the left one is above the right one in the paper's table
    ("dp-3", "foe-20+"),
    ("dp-20", "foe-20+"),
    ("dp-3", "dp-20"),
    ("dp-3", "dp-ssvm"),
    ("dp-20", "dp-ssvm"),
    ("foe-20+", "foe-20"),
    ("foe-3", "foe-20"),
    ("foe-3", "foe-20+"),
    ("foe-ssvm", "foe-3"),
    ("dp-ssvm", "foe-ssvm"),
    ("proximal-net", "bm3d"),
    ("foe-20", "proximal-net"),
    ("convnet", "proximal-net"),
    ("dp-3", "convnet"),
    ("proximal-net", "filter-forest"),
    ("filter-forest", "bm3d"),
    *((row, "bm3d") for row in ("foe-20", "foe-20+", "foe-3", "foe-ssvm", "dp-20", "dp-3", "dp-ssvm", "convnet")),
    ("dp-3", "dp-icnn"),
    ("spen-best", "unet"),
)
BLOCK, RESAMPLES = 5, 10_000
RUN_NAMES = {run_folder(Path(), name, 0).parent.name for name in RECIPES}
Scores = dict[int, NDArray[np.float64]]  # by seed, one number for each frame


def scores_of(row: Path, frames: Subset, every: int, measure: str) -> Scores:
    """Of all finished seeds of a row."""
    found: Scores = {}
    for test in sorted(row.glob("seed-*/test.json")):
        kept = test.parent / f"frames-{every}.json"
        if not kept.exists() or kept.stat().st_mtime < test.stat().st_mtime:
            opened: Any = open_model(test.parent, "cpu")
            values: dict[str, list[float]] = {"psnr": [], "clamped": []}
            for index in range(len(frames)):
                frame = frames.frame(index)
                with torch.no_grad():
                    y = opened.denoise(planes(frame))[:, 0]
                values["psnr"].append(float(psnr(y, frame.truth, frame.scored)))
                values["clamped"].append(float(clamped_psnr(y, frame.truth)))
            kept.write_text(json.dumps(values))
            print(f"  {test.parent}: {np.mean(values['psnr']):.2f} dB", flush=True)
        found[int(test.parent.name.removeprefix("seed-"))] = np.array(json.loads(kept.read_text())[measure])
    return found


def interval(a: Scores, b: Scores) -> tuple[float, float, float, int]:
    """The mean difference, its interval of 95 %, and the number of seeds."""
    seeds = sorted(set(a) & set(b))
    by_seed = np.stack([a[seed] - b[seed] for seed in seeds])  # (seeds, frames)
    blocks = np.array_split(np.arange(by_seed.shape[1]), -(-by_seed.shape[1] // BLOCK))
    means = np.stack([by_seed[:, block].mean(1) for block in blocks], 1)  # (seeds, blocks)
    generator = np.random.default_rng(0)
    middle = float(means.mean())
    moved = np.full(RESAMPLES, middle)
    for values in (means.mean(0), means.mean(1)):  # of groups, of seeds
        n = len(values)
        if n > 1:  # resampled means of n values vary too little, by (n − 1) / n
            drawn = values[generator.integers(0, n, (RESAMPLES, n))].mean(1)
            moved += (drawn - middle) * np.sqrt(n / (n - 1))
    low, high = np.quantile(moved, (0.025, 0.975))
    return float(by_seed.mean()), float(low), float(high), len(seeds)


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"))
    parser.add_argument("--rows", choices=["tuned", "paper"], default="tuned")
    parser.add_argument("--measure", choices=["psnr", "clamped"], default="psnr")
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    test = open_splits(find_regime(options.data)).test
    frames = Subset(test, list(range(0, len(test), options.every)))
    before = "paper-" if options.rows == "paper" else ""
    rows: dict[str, Scores] = {}
    for name in dict.fromkeys(name for pair in PAIRS for name in pair):
        home = options.runs / options.data
        folder = home / (before + name if before + name in RUN_NAMES else name)
        if found := scores_of(folder, frames, options.every, options.measure):
            # What learns nothing has one run, which is compared with every seed.
            rows[name] = dict.fromkeys(range(10), found[0]) if name in DETERMINISTIC else found
    print("\n| A against B | paper, A − B | here, A − B | interval | seeds | |\n| --- | --- | --- | --- | --- | --- |")
    for a, b in PAIRS:
        if not set(rows.get(a, ())) & set(rows.get(b, ())):
            continue
        mean, low, high, seeds = interval(rows[a], rows[b])
        papers = RECIPES[a].paper, RECIPES[b].paper
        printed = signed(papers[0] - papers[1]) if papers[0] is not None and papers[1] is not None else ""
        verdict = "holds" if low > 0 else "fails" if high < 0 else "within error"
        print(f"| {a}, {b} | {printed} | {signed(mean)} | [{signed(low)}, {signed(high)}] | {seeds} | {verdict} |")


if __name__ == "__main__":
    main()
