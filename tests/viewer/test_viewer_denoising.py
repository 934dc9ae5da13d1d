"""Images, noise, answers, and how they are shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spen.models import find_model
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import BadImage
from spen.tasks.denoising.losses import observation
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.opened import Denoiser
from spen.tasks.denoising.regimes import STRENGTH_30DB_ROOMS
from spen.tasks.denoising.report import Answer, answer
from spen.tasks.denoising.views import (
    BASELINES,
    EXAMPLES,
    MAX_PIXELS,
    STRENGTHS,
    Scene,
    example,
    observe,
    show,
    thumbnail,
    upload,
)

TV = (BASELINES["tv"].denoise, None)


@pytest.fixture(scope="module")
def scene() -> Scene:
    """A corner of a room."""
    room = example(1)
    return Scene(room.name, room.image[:, 80:128, 100:164].contiguous(), room.factor, room.depth)


def test_examples_are_the_test_rooms() -> None:
    room = example(2)
    assert room.name == "room 3"
    assert room.depth
    torch.testing.assert_close(4 * room.image, Rooms("test", 3).truth(2))
    with pytest.raises(ValueError, match=f"there are rooms 1 to {EXAMPLES}, not {EXAMPLES + 1}"):
        example(EXAMPLES)
    assert thumbnail(room).startswith("data:image/png;base64,")


def test_baselines_denoise() -> None:
    frame = Rooms("test", 1).frame(0)
    x = Observation(*(part[None, ..., :40, :50] for part in observation(frame)))
    for baseline in BASELINES.values():
        y = baseline.denoise(x)
        assert y.shape == x.image.shape
        assert bool((y > 0).all())  # holes are filled


def test_the_sensor_s_default_makes_about_30_db() -> None:
    assert STRENGTHS["depth sensor"][0] == STRENGTH_30DB_ROOMS
    frame = observe(example(0), "depth sensor", STRENGTH_30DB_ROOMS)
    assert 28 < float(psnr(frame.noisy, frame.truth, frame.scored)) < 32
    assert bool(frame.hole.any())


def test_gaussian_noise_has_its_sigma(scene: Scene) -> None:
    frame = observe(scene, "Gaussian", 25.0)
    error = (frame.noisy - frame.truth)[frame.scored]
    assert float(error.std()) * 255 == pytest.approx(25, rel=0.05)
    assert bool(frame.valid.all())
    again = observe(scene, "Gaussian", 25.0)
    assert torch.equal(again.noisy, frame.noisy)
    assert not torch.equal(observe(scene, "Gaussian", 25.0, seed=1).noisy, frame.noisy)


def test_an_image_that_is_noisy_already_has_no_truth(scene: Scene) -> None:
    frame = observe(scene, "none", 99.0)
    torch.testing.assert_close(frame.noisy, scene.image)
    assert not bool(frame.scored.any() | frame.hole.any())


def test_noise_has_a_name_and_bounds(scene: Scene) -> None:
    with pytest.raises(ValueError, match="the strength of the noise is between 0 and 100, not 1000000000.0"):
        observe(scene, "Gaussian", 1e9)
    with pytest.raises(ValueError, match="the strength of the noise is between 0 and 100, not nan"):
        observe(scene, "depth sensor", float("nan"))
    with pytest.raises(ValueError, match="there is no noise 'salt'; choose depth sensor, Gaussian or none"):
        observe(scene, "salt", 1.0)  # type: ignore[arg-type]


def test_uploads_keep_their_units(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 5), 2000, np.uint16)).save(tmp_path / "depth.png")
    depth = upload(tmp_path / "depth.png")
    assert (depth.depth, depth.factor, float(depth.image.mean())) == (True, 4.0, 0.5)
    Image.fromarray(np.full((4, 5), 51, np.uint8)).save(tmp_path / "grey.png")
    grey = upload(tmp_path / "grey.png")
    assert (grey.depth, grey.factor) == (False, 255.0)
    assert float(grey.image.mean()) == pytest.approx(0.2)
    assert float(upload(tmp_path / "grey.png", 102.0).image.mean()) == pytest.approx(0.5)


def test_bad_uploads_are_called_by_their_name_alone(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(BadImage) as caught:
        upload(tmp_path / "text.png")
    assert str(caught.value) == "text.png: is not an image of a known format"
    Image.new("L", (2000, 1000), 7).save(tmp_path / "large.png")
    with pytest.raises(BadImage) as caught:
        upload(tmp_path / "large.png")
    assert str(caught.value) == (
        f"large.png: claims 2000×1000 pixels, more than the {MAX_PIXELS} allowed; crop or shrink it"
    )


@pytest.fixture(scope="module")
def frame(scene: Scene):  # type: ignore[no-untyped-def]
    return observe(scene, "depth sensor", STRENGTH_30DB_ROOMS)


@pytest.fixture(scope="module")
def opened() -> Denoiser:
    return Denoiser.open(find_model("dp-3"))


@pytest.fixture(scope="module")
def answers(opened: Denoiser, frame) -> list[Answer]:  # type: ignore[no-untyped-def]
    return [answer("dp-3", (opened.denoise, opened.model), frame), answer("tv", TV, frame)]


def test_a_spen_s_answer_is_its_whole_way(opened: Denoiser, answers: list[Answer], frame) -> None:  # type: ignore[no-untyped-def]
    spen, tv = answers
    assert len(spen.outputs) == 4
    assert len(spen.energies) == 4
    assert len(spen.rates) == 3
    assert spen.energies[-1] < spen.energies[0]
    torch.testing.assert_close(opened.denoise(Observation(*(p[None] for p in observation(frame))))[0], spen.outputs[-1])
    assert len(tv.outputs) == 1
    assert tv.energies == tv.rates == []


def test_the_answer_has_pictures_errors_curves_and_figures(scene: Scene, answers: list[Answer], frame) -> None:  # type: ignore[no-untyped-def]
    html = show(scene, frame, answers)
    for t in range(4):
        assert f'alt="dp-3, iteration {t}"' in html
        assert f'alt="error of dp-3, iteration {t}"' in html
        decibels = float(psnr(answers[0].outputs[t], frame.truth, frame.scored))
        assert f'<span data-t="{t}">{decibels:.2f} dB</span>' in html
    assert '<img data-t="0 1 2 3" alt="tv, iteration 0"' in html
    for chart in ("energy, less that of the start", "PSNR, dB", "step sizes η"):
        assert f'aria-label="{chart}"' in html
    assert html.count('alt="truth"') == 1
    assert "<th>in holes</th>" in html
    assert f"{answers[0].energies[0]:,.2f} → {answers[0].energies[-1]:,.2f}" in html
    assert "no truth" not in html


def test_without_truth_it_shows_what_changed(scene: Scene, frame, answers: list[Answer]) -> None:  # type: ignore[no-untyped-def]
    blind = observe(scene, "none", 0.0)
    html = show(scene, blind, [answer("reading", (BASELINES["reading"].denoise, None), blind), answers[0]])
    assert 'alt="truth"' not in html
    assert "PSNR" not in html
    assert " dB<" not in html
    assert 'alt="change of dp-3, iteration 2"' in html
    assert "There is no truth to compare with" in html


def test_systems_without_a_descent_have_no_slider(scene: Scene, frame) -> None:  # type: ignore[no-untyped-def]
    html = show(scene, frame, [answer("tv", TV, frame)])
    assert "<input" not in html
    assert "energy, less" not in html


def test_grey_images_have_grey_numbers(frame, answers: list[Answer]) -> None:  # type: ignore[no-untyped-def]
    grey = Scene("photo & <i>.png", frame.truth, 255.0, False)
    html = show(grey, frame, answers)
    legend = re.findall(r'<div class="legend"><b>(\w+)</b>', html)
    assert legend == ["value", "error"]
    assert " mm<" not in html
    assert "in holes" not in html
