"""The shipped denoisers: what they gain on images that they have not seen, with the noise level estimated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from spen.models import find_model, open_model
from spen.tasks.denoising.data import Frames, Rooms, Simulated, Subset
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.leaves import Leaves
from spen.tasks.denoising.noise import parse_noise
from spen.tasks.denoising.opened import Denoiser
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.train import evaluate


def gain(name: str, frames: Frames) -> dict[str, float]:
    model = open_model(name)
    assert isinstance(model, Denoiser)
    scores = evaluate(model.denoise, frames, kind=model.kind)
    return {**scores, "gain": scores["psnr"] - scores["input_psnr"]}


def real(data: str, every: int, noise: str = "") -> Frames:
    try:
        frames = open_splits(find_regime(data, parse_noise(noise) if noise else None)).test
    except FileNotFoundError:
        pytest.skip(f"{data} is not here")
    return Subset(frames, range(0, len(frames), every))


@pytest.mark.parametrize(("name", "limit"), [("depth", 5), ("photo", 10)])
def test_they_are_small_and_say_how_they_were_trained(name: str, limit: int) -> None:
    saved = find_model(name)
    assert sum(path.stat().st_size for path in saved.folder.iterdir()) < limit * 2**20
    assert saved.about
    assert isinstance(saved.settings["data"], str)  # no folder of the machine that trained it


@pytest.mark.parametrize("noise", ["depth-sensor:0.5", "kinect:1", "depth-sensor:3", "kinect:6", "depth-sensor:15"])
def test_depth_is_never_below_its_input(noise: str) -> None:
    assert gain("depth", Simulated(Rooms("test", 1), parse_noise(noise)))["gain"] > 0


def test_depth_on_a_real_sensor() -> None:
    frames = real("redkitchen", 20)
    scores = gain("depth", frames)
    shown = [frames.frame(index) for index in range(len(frames))]
    raw = [-10 * torch.log10((f.noisy - f.truth)[f.surface].square().mean()) for f in shown]
    assert scores["gain"] > 1.5
    assert scores["surface_psnr"] - float(torch.stack(raw).mean()) > 2


@pytest.mark.parametrize(("sigma", "least"), [(15, 4.0), (25, 5.0), (50, 7.0)])
def test_photo_denoises_colours(sigma: int, least: float) -> None:
    assert gain("photo", Simulated(Leaves(1, seed=9), parse_noise(f"gaussian:{sigma}")))["gain"] > least


def test_photo_leaves_clean_images_alone() -> None:
    assert gain("photo", Simulated(Leaves(1, seed=9), parse_noise("gaussian:0")))["psnr"] > 45


def test_photo_on_photographs() -> None:
    assert gain("photo", real("gaussian", 1))["psnr"] > 29.5


def test_photo_from_the_command_line_keeps_the_kind_of_an_image(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    for name, shape in (("grey", (40, 50)), ("colour", (40, 50, 3))):
        noisy = np.clip(128 + 20 * rng.standard_normal(shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / f"{name}.png")
        list(open_model("photo").predict([tmp_path / f"{name}.png"], tmp_path / f"{name}-out.png"))
        answer = np.asarray(Image.open(tmp_path / f"{name}-out.png"))
        assert answer.shape == shape
        assert answer.std() < 0.3 * noisy.std()
