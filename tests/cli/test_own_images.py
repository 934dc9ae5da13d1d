"""Images of one's own by the command line alone: from pairs in a folder to an exported model; and mistakes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spen.cli import main
from spen.models import open_model
from spen.storage import load_weights
from tests.cli.world import spen

OPTIONS = {"batches": "2", "per_epoch": "2", "batch_size": "2", "width": "4", "crop": "16x16"}
SMALL = [word for key, value in OPTIONS.items() for word in ("--set", f"{key}={value}")] + ["--device", "cpu"]
RUN = "runs/own/denoise/seed-0"


def picture(rng: np.random.Generator, height: int, width: int, *, colour: bool = False) -> np.ndarray:
    coarse = rng.integers(30, 220, (3, 3, 3) if colour else (3, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def noised(rng: np.random.Generator, clean: np.ndarray) -> np.ndarray:
    return np.clip(clean + 20 * rng.standard_normal(clean.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, then twenty pairs of mixed sizes, and a model trained on them."""
    folder = tmp_path_factory.mktemp("own-images")
    rng = np.random.default_rng(0)
    (folder / "own").mkdir()
    for k in range(20):
        clean = picture(rng, 24 + k % 3, 28)
        Image.fromarray(clean).save(folder / "own" / f"{k:02d}.clean.png")
        Image.fromarray(noised(rng, clean)).save(folder / "own" / f"{k:02d}.noisy.png")
    (folder / "own" / "notes.md").write_text("not an image")
    Image.fromarray(picture(rng, 20, 20)).save(folder / "own" / "alone.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trained = spen("train", "denoise", "--data", "own", *SMALL)
        assert trained.status == 0, trained.err
        assert trained.out.startswith(f"{RUN}: best development PSNR (dB) ")
        assert "own: 20 images (16 train, 2 dev, 2 test; by shares, seed 0)" in trained.err
        assert "2 left out: notes.md: is no image; alone.png: is no part of a pair" in trained.err
        yield folder


def test_a_run_is_scored_on_its_own_split_and_on_another_folder(place: Path) -> None:
    own = json.loads(spen("evaluate", RUN, "--json").out)
    assert (own["frames"], own["data"]) == (2, "own")
    assert 15 < own["input_psnr"] < 30
    (place / "clean").mkdir(exist_ok=True)
    for k in range(3):
        Image.fromarray(picture(np.random.default_rng(k), 20 + k, 24, colour=True)).save(place / "clean" / f"{k}.png")
    other = spen("evaluate", RUN, "--data", "clean", "--noise", "gaussian:25")
    assert "on 3 all images of clean" in other.out, other.err
    told = [
        json.loads(spen("evaluate", RUN, "--data", "clean", "--noise", "gaussian:25", "--json", *more).out)["psnr"]
        for more in ((), ("--sigma", "5"), ("--sigma", "60"))
    ]
    assert len(set(told)) == 3


def test_files_folders_and_batches_are_denoised(place: Path) -> None:
    rng = np.random.default_rng(1)
    (place / "in").mkdir(exist_ok=True)
    for k in range(3):
        Image.fromarray(noised(rng, picture(rng, 20, 24, colour=True))).save(place / "in" / f"{k}.png")
    Image.fromarray(picture(rng, 20, 24)).save(place / "grey.jpg")
    one = spen("predict", RUN, "grey.jpg", "-o", "grey.png")
    assert (one.status, one.out) == (0, "grey.png\n"), one.err
    several = spen("predict", RUN, "in", "-o", "one-by-one")
    together = spen("predict", RUN, "in", "-o", "together", "--batch", "2")
    assert several.status == together.status == 0, together.err
    for k in range(3):
        first, second = (np.asarray(Image.open(f"{out}/{k}.png")).astype(int) for out in ("one-by-one", "together"))
        assert first.shape == (20, 24, 3)
        assert np.abs(first - second).max() <= 1
    answers = [
        np.asarray(Image.open(spen("predict", RUN, "in/0.png", "-o", f"{s}.png", "--sigma", s).out.strip()))
        for s in ("1", "50")
    ]
    assert not np.array_equal(*answers)


def test_standard_input_to_standard_output(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture(np.random.default_rng(5), 20, 24, colour=True)
    given, answered = io.BytesIO(), io.BytesIO()
    Image.fromarray(image).save(given, "PNG")
    given.seek(0)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(answered))
    monkeypatch.setattr(sys, "argv", ["spen", "predict", RUN, "-", "-o", "-"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    answered.seek(0)
    assert np.asarray(Image.open(answered)).shape == image.shape


def test_an_exported_run_answers_as_before(place: Path) -> None:
    saved = spen("export", RUN, "saved", "--about", "own images")
    assert saved.status == 0, saved.err
    first, second = (json.loads(spen("evaluate", name, "--json").out)["psnr"] for name in (RUN, "saved"))
    assert first == second


def test_training_starts_from_a_trained_model(place: Path) -> None:
    options = ("--data", "own", "--device", "cpu", "--set", "batches=1", "--set", "warmup=1", "--set", "width=4")
    options += ("--set", "crop=16x16", "--set", "batch_size=1", "--set", "learning_rate=1e-12", "--set", "average=0")
    answer = spen("train", "denoise", *options, "--start", RUN, "--out", "further")
    assert answer.status == 0, answer.err
    before, after = (load_weights(Path(folder) / "model.safetensors") for folder in (RUN, "further"))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    network = ("--set", "floor=0.004", "--set", "blind=false", "--set", "bf16=true")
    answer = spen("train", "unet", *options, *network, "--out", "network")
    assert answer.status == 0, answer.err
    answer = spen("train", "denoise", *options, "--start", "network", "--out", "energy")
    assert answer.status == 0, answer.err
    before, after = (load_weights(Path(folder) / "model.safetensors") for folder in ("network", "energy"))
    for name, value in before.items():
        if name.startswith("init.prior."):
            assert torch.allclose(value, after["energy.parts.prior.energy." + name[11:]], atol=1e-6)
    refused = spen("train", "denoise", *options, "--start", "dp-3", "--out", "other")
    assert refused.status == 2
    told = "is a model of recipe dp-3 with other options (prior deep, width 32) than denoise: spen train dp-3 --start"
    assert f"dp-3 {told} dp-3, or leave --start out" in refused.err
    refused = spen("train", "denoise", *options, "--start", "photo", "--out", "other")
    told = "is a model of recipe photo with other options (width 24) than denoise: spen train photo --start photo, or"
    assert f"photo {told} give --set width=24" in refused.err
    refused = spen("train", "denoise", *options, "--start", "sudoku", "--out", "other")
    assert "sudoku is a model of the task reasoning, not of denoising: it cannot start denoise" in refused.err
    refused = spen("train", "tv", "--data", "own", "--start", RUN, "--out", "classical")
    assert "tv has no weights to start from; leave --start out" in refused.err


def test_a_model_that_spoils_an_image_says_so(place: Path) -> None:
    checks = (np.indices((32, 32)).sum(0) % 2 * 200 + 20).astype(np.uint8)
    Image.fromarray(checks).save("two words.png")
    answer = spen("predict", "dp-3", "two words.png", "-o", "spoilt.png")
    assert "two words.png: dp-3 is for depth maps, and this is a photograph; take the model photo: spen" in answer.err
    assert "spen predict photo 'two words.png'" in answer.err
    assert "take a model that reads the noise level: photo" in answer.err
    plane = 1500 + 5 * np.indices((64, 64)).sum(0) + np.random.default_rng(0).normal(0, 50, (64, 64))
    Image.fromarray(plane.astype(np.uint16)).save("plane.png")
    assert "worse" not in spen("predict", "dp-3", "plane.png", "-o", "flat.png").err
    rough = 2000 + np.random.default_rng(0).normal(0, 2, (64, 64)) + 300 * (np.indices((64, 64))[1] // 4 % 2)
    Image.fromarray(rough.astype(np.uint16)).save("bars.png")
    answer = spen("predict", "dp-3", "bars.png", "-o", "smooth.png")
    assert "bars.png: the answer is worse than the image: it differs by" in answer.err
    assert "take a model that reads the noise level: depth" in answer.err
    answer = spen("predict", RUN, "plane.png", "-o", "own.png")
    assert (
        f"plane.png: {RUN} is for photographs, and grey of 16 bits is read as depth in millimetres; take" in answer.err
    )
    assert "for photographs" not in spen("predict", RUN, "plane.png", "-o", "own.png", "--peak", "65535").err


def test_splits_by_subfolders_and_by_lists(place: Path) -> None:
    rng = np.random.default_rng(2)
    for part in ("train", "test"):
        for kind in ("noisy", "clean"):
            (place / "parted" / part / kind).mkdir(parents=True, exist_ok=True)
            for k in range(3):
                Image.fromarray(picture(rng, 20, 24)).save(place / "parted" / part / kind / f"{k}.png")
    answer = spen("evaluate", RUN, "--data", "parted")
    assert "on 3 test images of parted" in answer.out, answer.err
    assert "6 images (2 train, 1 dev, 3 test; by subfolders)" in answer.err
    (place / "listed").mkdir(exist_ok=True)
    for k in range(4):
        Image.fromarray(picture(rng, 20, 24)).save(place / "listed" / f"{k}.png")
    for part, names in (("train", "0.png\n1.png\n"), ("dev", "2.png\n"), ("test", "3\n")):
        (place / "listed" / f"{part}.txt").write_text(names)
    answer = spen("evaluate", RUN, "--data", "listed", "--noise", "poisson:20-40", "--split", "dev")
    assert "on 1 dev images of listed" in answer.out, answer.err


# ── mistakes ──


def folder_with(place: Path, name: str, *files: str) -> None:
    (place / name).mkdir(exist_ok=True)
    for file in files:
        (place / name / file).parent.mkdir(exist_ok=True)
        if file.endswith(".png"):
            Image.fromarray(picture(np.random.default_rng(0), 20, 20)).save(place / name / file)
        else:
            (place / name / file).write_text("a.png\n")


@pytest.mark.parametrize(
    ("files", "more", "line"),
    [
        ((), (), "holds no image; put images there (.png, "),
        (("a.txt", "b.csv"), (), "holds no image; put images there (.png, "),
        (
            ("train/a.png", "dev/b.png"),
            (),
            "has a folder train/ and no test/; add it, or put all images into one folde",
        ),
        (("a.clean.png", "a.noisy.png", "b.noisy.png"), (), "b.noisy.png: has no clean partner in "),
        (("a.png", "b.png", "c.png"), (), "holds clean images and no pairs; say what noise to add, as --noise gaussia"),
        (
            ("a.png", "b.png", "c.png"),
            ("--noise", "gaussian:25", "--set", "crop=64x64"),
            "no image is as large as a crop",
        ),
        (("b.png", "train.txt"), ("--noise", "gaussian:25"), "has no test.txt; train.txt and test.txt are needed"),
        (
            ("b.png", "train.txt", "test.txt"),
            ("--noise", "gaussian:25"),
            "train.txt: names 'a.png', and there is no suc",
        ),
        (
            ("a.png", "train.txt", "dev.txt", "test.txt"),
            ("--noise", "gaussian:25"),
            "names 'a.png', and so does train.txt; keep it in one list",
        ),
        (("a.png", "b.png"), ("--noise", "gaussian:25"), "holds 2 images; training needs 3 or more, one for each"),
        (("a.png",), ("--noise", "salt:3"), "--noise is gaussian:SIGMA (of 255), poisson:PEAK"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_sentence(
    place: Path, files: tuple[str, ...], more: tuple[str, ...], line: str, request: pytest.FixtureRequest
) -> None:
    name = f"wrong-{request.node.callspec.indices['files']}"
    folder_with(place, name, *files)
    answer = spen("train", "denoise", "--data", name, *SMALL, *more)
    assert answer.status == 2, answer
    assert line in answer.err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("evaluate dp-3 --sigma 5", "dp-3 does not read a noise level, so --sigma has no effect; leave it out"),
        (f"evaluate {RUN} --data own --split-seed 1", "was trained with --split-seed 0; its test images are those"),
        (f"evaluate {RUN} --strength 5", "reads its noise level from --sigma, out of 255"),
        (f"evaluate {RUN} --sigma -5", "the noise level is 0 or more"),
        (
            "train denoise --data rooms --noise gaussian:5",
            "--noise gaussian:5 does not fit rooms, whose noise is depth-",
        ),
        ("train dp-3 --peak 4", "--peak is for a folder of images, and rooms is none"),
        ("train local --noise gaussian:5", "--noise is an option of denoising, not of srl"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(place: Path, command: str, line: str) -> None:
    answer = spen(*command.split())
    assert answer.status == 2, answer
    assert line in answer.err.strip().splitlines()[-1]


def test_a_pair_of_two_sizes_is_left_out_and_named(place: Path) -> None:
    folder_with(place, "sizes", *(f"{k}.{kind}.png" for k in range(4) for kind in ("clean", "noisy")))
    Image.fromarray(np.ones((9, 20), np.uint8)).save(place / "sizes" / "1.noisy.png")
    answer = spen("evaluate", RUN, "--data", "sizes")
    assert answer.status == 0, answer.err
    assert "1 left out: 1: its clean image is 20×20 and its noisy one 20×9" in answer.err


def test_images_are_read_as_those_of_training_were(place: Path) -> None:
    folder_with(place, "deep", *(f"{k}.png" for k in range(3)))
    for k in range(3):
        Image.fromarray(np.full((20, 20), 40_000 + k, np.uint16)).save(place / "deep" / f"{k}.png")
    train = ("train", "denoise", "--data", "deep", "--noise", "gaussian:25", "--peak", "65535", *SMALL)
    assert spen(*train).status == 0
    model = open_model(place / "runs" / "deep" / "denoise" / "seed-0")
    seen: list[float] = []

    def denoise(x: Any) -> Any:
        seen.append(float(x.image.max()))
        return x.image

    model.denoise = denoise
    list(model.predict([place / "deep" / "0.png"], place / "deep.png"))
    list(model.predict([place / "deep" / "0.png"], place / "deep.png", peak=40_000.0))
    assert seen == pytest.approx([40_000 / 65_535, 1.0])
