"""The value that counts as 1, and zeros: read as what they are, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spen.models import open_model
from spen.tasks.denoising.images import BadImage, load_scaled
from tests.cli.world import spen


def written(path: Path, values: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values).save(path)
    return path


GREY = np.linspace(0.1, 0.9, 48 * 48).reshape(48, 48)


@pytest.mark.parametrize(
    ("name", "scale", "kind", "advice"),
    [
        ("a.npy", 255, np.float32, "a.npy: has values up to 229.5, and 1 counts as 1; .*as --peak 255"),
        ("a.tif", 3.0, np.float32, "a.tif: has values up to 2.7, and 1 counts as 1; .*as --peak 4"),
        ("a.png", 65535, np.uint16, "a.png: has values up to 58981, and 4000 counts as 1; .*as --peak 65535"),
    ],
)
def test_values_far_above_the_default_peak_are_refused(
    tmp_path: Path, name: str, scale: float, kind: type, advice: str
) -> None:
    path = written(tmp_path / name, (GREY * scale).astype(kind))
    with pytest.raises(BadImage, match=advice):
        load_scaled(path)
    answer = spen("predict", "photo", str(path), "-o", str(tmp_path / "out.npy"))
    assert answer.status == 2
    assert "counts as 1; give the value" in answer.err
    assert load_scaled(path, 70_000.0).peak == 70_000


def test_noise_depth_and_eight_bits_are_not_refused(tmp_path: Path) -> None:
    noisy = (GREY + 0.22 * np.random.default_rng(0).standard_normal(GREY.shape)).astype(np.float32)
    assert load_scaled(written(tmp_path / "noisy.npy", noisy)).peak == 1
    assert load_scaled(written(tmp_path / "depth.png", (GREY * 9000).astype(np.uint16))).peak == 4000
    far = written(tmp_path / "far.png", (GREY * 60_000).astype(np.uint16))
    assert load_scaled(far, depth=True).peak == 4000
    assert load_scaled(written(tmp_path / "byte.png", (GREY * 255).astype(np.uint8))).peak == 255


@pytest.mark.parametrize("name", ["black.npy", "black.tif"])
def test_black_is_no_missing_reading_in_a_photograph(tmp_path: Path, name: str) -> None:
    values = GREY.astype(np.float32).copy()
    values[10:30, 10:30] = 0
    path, out = written(tmp_path / name, values), tmp_path / "out.npy"

    def inside(**options: str) -> float:
        list(open_model("photo").predict([path], out, **options))
        return float(np.abs(np.load(out)[14:26, 14:26]).mean())

    assert inside() < 0.05
    assert inside(holes="zero") > 0.2


def test_noisy_images_that_are_not_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from spen.tasks.denoising.folder import open_parts
    from spen.tasks.denoising.noise import parse_noise
    from spen.tasks.denoising.regimes import find_regime

    for k in range(4):
        for kind in ("noisy", "clean"):
            written(tmp_path / f"{k}.{kind}.png", (GREY * 255).astype(np.uint8))
    sentence = "the noisy images are not used: --noise adds noise to the clean ones"
    open_parts(find_regime(str(tmp_path)))
    assert sentence not in capsys.readouterr().err
    open_parts(find_regime(str(tmp_path), parse_noise("gaussian:25")))
    assert sentence in capsys.readouterr().err
