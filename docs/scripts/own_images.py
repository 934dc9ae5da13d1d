"""The strip of pictures in `docs/own-images.md`: inputs above, answers of the shipped models below.

    python docs/scripts/own_images.py

A frame of a real Kinect (RedKitchen's test split, from the data folder), a photograph with the noise of a phone's
camera and a scanned page (chelsea and page of scikit-image, CC0). Depth is drawn as a surface lit from the upper left.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage import data

from spen.models import open_model
from spen.tasks.locations import find_data

Pixels = NDArray[np.float64]
FRAME = 30  # of the test split


def photograph() -> NDArray[np.uint8]:
    """A photograph as a small sensor takes it: photons counted, and noise of reading."""
    rng = np.random.default_rng(0)
    light = data.chelsea()[:240, 60:380] / 255
    noisy = rng.poisson(light * 150) / 150 + rng.normal(0, 0.04, light.shape)
    return np.clip(np.rint(255 * noisy), 0, 255).astype(np.uint8)


def scan() -> NDArray[np.uint8]:
    """The page with the noise of a cheap scanner."""
    page = data.page()[:180, :240].astype(float)
    page = np.asarray(Image.fromarray(page.astype(np.float32)).resize((320, 240), Image.Resampling.BICUBIC))
    noisy = page + np.random.default_rng(1).normal(0, 18, page.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def lit(depth: Pixels) -> Pixels:
    """Millimetres as a grey surface; black where there is no reading."""
    filled = np.where(depth > 0, depth, np.nan)
    v, u = np.gradient(filled)
    scale = 0.15 * np.nan_to_num(filled, nan=1.0) / 292.5 * 20  # a slope of one is as many millimetres a pixel
    return np.nan_to_num(np.clip(0.6 + 0.4 * (u + v) / np.maximum(scale, 1), 0, 1), nan=0.0)


def answers(model: str, image: NDArray, folder: Path) -> NDArray:
    """The answer by files, as the command line gives it."""
    source, target = folder / "in.png", folder / "out.png"
    Image.fromarray(image).save(source)
    list(open_model(model).predict([source], target))
    return np.asarray(Image.open(target))


def main() -> None:
    kitchen = sorted((find_data("denoising", "redkitchen") / "test").glob("*.raw.png"))[FRAME]
    inputs = {
        "a real Kinect, depth": ("depth", np.asarray(Image.open(kitchen)).astype(np.uint16)),
        "a photograph, photo": ("photo", photograph()),
        "a scan, photo": ("photo", scan()),
    }
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.4), layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        for column, (title, (model, image)) in enumerate(inputs.items()):
            answer = answers(model, image, Path(folder))
            if model == "depth":
                answer = np.where(image > 0, answer, 0)  # filled holes would hide what changed
            for axis, pixels in zip(axes[:, column], (image, answer), strict=True):
                shown = lit(pixels.astype(float)) if model == "depth" else pixels
                axis.imshow(shown, cmap="gray", vmin=0, vmax=1 if model == "depth" else 255)
                axis.set_axis_off()
            axes[0, column].set_title(title, fontsize=11)
    out = Path(__file__).parents[1] / "figures" / "own-images.png"
    figure.savefig(out, dpi=100)
    print(out)


if __name__ == "__main__":
    main()
