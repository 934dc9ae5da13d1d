"""Denoising files: nothing is overwritten, nothing is lost, any size, black is black."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from spen.models import open_model
from spen.tasks.denoising import predict
from spen.tasks.denoising.energy import NoisyObservation, Observation, Observed
from spen.tasks.denoising.images import BadImage, LoadedImage, load_image
from spen.tasks.denoising.predict import FileDenoiser, averaged


def grey(path: Path, value: int = 90, shape: tuple[int, int] = (6, 5)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)
    return path


def same(x: Observation) -> Tensor:
    return x.image


def test_a_result_never_overwrites_another_input(tmp_path: Path) -> None:
    first, second = grey(tmp_path / "a" / "x.png", 50), grey(tmp_path / "b" / "x.png", 150)
    with pytest.raises(ValueError, match=r"b/x.png would be overwritten by the answer for .*a/x.png; give another -o"):
        list(FileDenoiser(same).files([first.parent, second.parent], second.parent))
    assert load_image(second).values[0, 0] == 150


def test_two_results_of_one_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    first, second = grey(tmp_path / "a" / "x.png"), grey(tmp_path / "b" / "x.png")
    with pytest.raises(ValueError, match=r"a/x.png and .*b/x.png would both be written to .*out/x.png; rename one"):
        list(FileDenoiser(same).files([first, second], tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_formats_that_cannot_be_written_become_png(tmp_path: Path) -> None:
    grey(tmp_path / "in" / "a.bmp", 7)
    grey(tmp_path / "in" / "b.png", 8)
    written = list(FileDenoiser(same).files([tmp_path / "in"], tmp_path / "out"))
    assert [p.name for p in written] == ["a.png", "b.png"]
    assert [int(load_image(p).values[0, 0]) for p in written] == [7, 8]
    with pytest.raises(BadImage, match=r"out.jpg: cannot be written; name it .png, .tif, .tiff or .npy"):
        list(FileDenoiser(same).files([tmp_path / "in" / "b.png"], tmp_path / "out.jpg"))


def test_images_that_cannot_be_used_are_named_when_the_others_are_done(tmp_path: Path) -> None:
    for name in ("a.png", "c.png", "._c.png"):
        grey(tmp_path / "in" / name)
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    with pytest.raises(BadImage, match=r"1 of 3 images were left out: .*b.png: is not an image of a known format$"):
        list(FileDenoiser(same).files([tmp_path / "in"], tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]


def test_a_folder_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "out.v2").mkdir()
    assert list(FileDenoiser(same).files([grey(tmp_path / "x.png")], tmp_path / "out.v2")) == [
        tmp_path / "out.v2" / "x.png"
    ]


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (3, 5), (4, 3), (16, 2)])
def test_the_smallest_images_are_denoised_too(shape: tuple[int, int]) -> None:
    depth = LoadedImage(np.full(shape, 2000, np.uint16), 4000.0)
    [clean] = FileDenoiser(open_model("dp-3").denoise).images([depth])
    assert clean.values.shape == shape
    assert np.abs(clean.values.astype(float) - 2000).max() < 40


def test_black_is_a_hole_in_depth_and_a_colour_in_a_photograph(tmp_path: Path) -> None:
    values = np.full((20, 20), 200)
    values[:, 10:] = 0
    photograph = LoadedImage(values.astype(np.uint8), 255.0)
    assert photograph.valid().all()
    assert not LoadedImage(values.astype(np.uint8), 255.0, "zero").valid()[0, :, 10:].any()
    assert not LoadedImage(values.astype(np.uint16), 4000.0).valid()[0, :, 10:].any()
    assert LoadedImage(values.astype(np.uint16), 4000.0, "none").valid().all()
    assert not LoadedImage(np.array([[np.nan, 0.5]]), 1.0, "none").valid()[0, 0, 0]
    clean = FileDenoiser(open_model("dp-3").denoise).images([photograph])[0].values
    assert clean[:, 14:].max() < 40
    path = tmp_path / "depth.png"
    Image.fromarray(values.astype(np.uint8)).save(path)
    filled = next(FileDenoiser(open_model("dp-3").denoise, holes="zero").files([path], tmp_path / "filled.png"))
    assert load_image(filled).values[:, 14:].min() > 150
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    assert load_image(path).valid().all()
    with pytest.raises(BadImage, match="every pixel is zero, so the frame holds no reading"):
        load_image(path, holes="zero")


def test_an_image_that_is_stored_turned_is_read_upright(tmp_path: Path) -> None:
    path = tmp_path / "turned.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = np.arange(24, dtype=np.uint8).reshape(4, 6)
    Image.fromarray(stored).save(path, exif=exif)
    assert np.array_equal(load_image(path).values, np.rot90(stored, -1))
    Image.fromarray(stored).save(path.with_suffix(".tiff"), exif=exif)
    with pytest.raises(BadImage, match=r"is stored turned or mirrored \(orientation 6\); save it upright first"):
        load_image(path.with_suffix(".tiff"))


def test_large_images_are_answered_in_tiles_that_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """By value: what sees only its surroundings gives the same answer in tiles as at once."""
    for name, value in (("WHOLE", 400), ("TILE", 16), ("MARGIN", 4)):
        monkeypatch.setattr(predict, name, value)
    seen: list[int] = []

    def smooth(x: Observed) -> Tensor:
        seen.append(x.image.shape[-1])
        return F.avg_pool2d(x.image, 7, 1, 3)

    image = torch.rand(2, 1, 37, 50, generator=torch.Generator().manual_seed(0))
    x = NoisyObservation(image, torch.ones_like(image), torch.ones(2, 1, 1, 1))
    torch.testing.assert_close(predict.tiled(smooth)(x), smooth(x))
    assert len(seen) == 13
    assert max(seen[:-1]) == 24


def test_a_told_model_gets_the_least_noise_of_the_planes_or_what_is_said() -> None:
    told: list[Tensor] = []

    def keep(x: Observed) -> Tensor:
        told.append(x.noise.flatten())  # type: ignore[union-attr]
        return x.image

    colours = LoadedImage(np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8), 255.0)
    FileDenoiser(keep, "gaussian").images([colours, colours])
    FileDenoiser(keep, "gaussian", 0.25).images([colours])
    assert told[0].shape == (6,)
    assert len(set(told[0].tolist())) == 1
    assert 0.2 < float(told[0][0]) < 0.35  # of 255·U(0, 1): 0.29
    assert told[1].tolist() == [0.25] * 3


@pytest.mark.parametrize("turns", [1, 2, 4, 8])
def test_answers_for_turned_copies_are_turned_back_and_averaged(turns: int) -> None:
    draws = torch.Generator().manual_seed(0)
    image, noise = torch.rand(2, 1, 5, 7, generator=draws), torch.rand(2, 1, 1, 1, generator=draws)
    x = NoisyObservation(image, torch.ones_like(image), noise)
    assert torch.allclose(averaged(lambda x: x.image * x.noise, turns)(x), image * noise)
    shapes: list[tuple[int, ...]] = []

    def corner(x: Observed) -> Tensor:
        """Not the same for turned images: each copy marks another corner."""
        shapes.append(tuple(x.image.shape[-2:]))
        answer = torch.zeros_like(x.image)
        answer[..., 0, 0] = 1.0
        return answer

    found = averaged(corner, turns)(x)
    assert shapes == [(5, 7)] * min(turns, 4) + [(7, 5)] * (turns - 4)
    expected = torch.zeros_like(image)
    for row, column in [(0, 0), (0, -1), (-1, 0), (-1, -1)][:turns]:
        expected[..., row, column] = 1 / min(turns, 4)
    assert torch.allclose(found, expected)


def test_a_number_of_copies_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^turns is 1, 2, 4 or 8 copies of the image, not 3$"):
        averaged(same, 3)


def test_turns_change_the_answer_and_the_score(tmp_path: Path) -> None:
    image = grey(tmp_path / "x.png", shape=(20, 24))
    noisy = np.clip(90 + 25 * np.random.default_rng(0).standard_normal((20, 24)), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(image)
    model = open_model("photo")
    [one] = model.predict([image], tmp_path / "one.png")
    [four] = model.predict([image], tmp_path / "four.png", turns=4)
    assert (load_image(one).values != load_image(four).values).any()
    flat = [np.abs(load_image(path).values.astype(float) - 90).mean() for path in (image, one, four)]
    assert flat[2] < flat[0]
