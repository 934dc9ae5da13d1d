"""Built-in rooms: shaded, as true depth, and as a sensor of strength 1 and one near 30 dB read them.

Run from the root of the repository: python docs/scripts/rooms.py writes docs/figures/rooms.png
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image

from spen.tasks.denoising.regimes import STRENGTH_30DB_ROOMS
from spen.tasks.denoising.rooms.scenes import FAR_M, NEAR_M, room_frame
from spen.tasks.denoising.sensor import Sensor

FRAMES = (("train", 4), ("train", 12), ("train", 19))


def colour(depth: np.ndarray) -> np.ndarray:  # (H, W) metres → (H, W, 3) uint8
    """Near is bright, far is dark, and no reading is black."""
    near = 1 - (depth - NEAR_M) / (FAR_M - NEAR_M)
    rgb = colormaps["viridis"](np.clip(near, 0, 1))[..., :3] * 255
    return np.where((depth > 0)[..., None], rgb, 0).astype(np.uint8)


def shade(depth: np.ndarray, focal: float = 292.5) -> np.ndarray:  # (H, W) metres → (H, W, 3) uint8
    """Lit from the upper right: the surface normal is along (−f·z_u, −f·z_v, z)."""
    down, across = np.gradient(depth)
    normal = np.stack([-focal * across, -focal * down, np.maximum(depth, 0.1)], axis=-1)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    light = 0.25 + 0.75 * np.clip(normal @ np.array([0.4, -0.6, 0.7]), 0, 1)
    return np.repeat((light * 255).astype(np.uint8)[..., None], 3, axis=-1)


def main(out: Path) -> None:
    columns = []
    for seed, (split, index) in enumerate(FRAMES):
        truth = torch.from_numpy(room_frame(split, index))
        rows = [truth]
        for strength in (1.0, STRENGTH_30DB_ROOMS):
            rows.append(Sensor(strength)(truth, torch.Generator().manual_seed(seed)).depth)
        columns.append(np.concatenate([shade(truth.numpy()), *(colour(row.numpy()) for row in rows)]))
    picture = Image.fromarray(np.concatenate(columns, axis=1))
    # A palette halves the file, and the eye does not miss the other colours.
    picture.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/rooms.png"))
    main(parser.parse_args().out)
