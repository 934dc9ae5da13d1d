"""Bit depth and units survive; whatever is wrong with a file is one sentence that names it."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from spen.tasks.denoising.images import BadImage, LoadedImage, as_dtype, list_images, load_image, save_image


def ramp(dtype: str) -> np.ndarray:
    top = {"uint8": 255, "uint16": 40000}.get(dtype, 3.5)
    return np.linspace(1, top, 6 * 8).reshape(6, 8).astype(dtype)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        (".png", "uint8"),
        (".png", "uint16"),
        (".tiff", "uint8"),
        (".tiff", "uint16"),
        (".tif", "float32"),
        *[(".npy", dtype) for dtype in ("uint8", "uint16", "float16", "float32", "float64")],
    ],
)
def test_saving_and_loading_keeps_every_bit(tmp_path: Path, suffix: str, dtype: str) -> None:
    path = tmp_path / f"image{suffix}"
    save_image(path, LoadedImage(ramp(dtype), 1.0))
    back = load_image(path).values
    assert back.dtype == dtype
    assert np.array_equal(back, ramp(dtype))


@pytest.mark.parametrize(("dtype", "peak"), [("uint8", 255.0), ("uint16", 4000.0), ("float32", 1.0)])
def test_units_of_the_model_and_back(tmp_path: Path, dtype: str, peak: float) -> None:
    path = tmp_path / "image.npy"
    np.save(path, ramp(dtype))
    image = load_image(path)
    assert image.peak == peak
    assert torch.allclose(image.tensor()[0].double(), torch.from_numpy(ramp(dtype).astype(float) / peak))
    assert np.array_equal(image.like(image.tensor()).values, ramp(dtype))
    assert load_image(path, peak=10.0).tensor().max() == pytest.approx(float(ramp(dtype).max()) / 10)


def pillow(path: Path, mode: str) -> np.ndarray:
    """A file of a mode of Pillow's, and its pixels."""
    rng = np.random.default_rng(3)
    image = Image.fromarray(rng.integers(1, 255, (5, 7, 3), dtype=np.uint8)).convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(rng.integers(0, 255, (5, 7), dtype=np.uint8)))
    image.save(path)
    return np.asarray(image.convert("RGB") if mode == "P" else image.convert("L") if mode == "1" else image)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
def test_every_kind_of_8_bits_comes_back(tmp_path: Path, mode: str) -> None:
    """Through the planes of a model and back: colours, and transparency as it was."""
    whole = pillow(tmp_path / "a.png", mode)
    image = load_image(tmp_path / "a.png")
    planes = image.tensor()
    assert planes.shape == (1 if mode in ("L", "LA", "1") else 3, 5, 7)
    assert image.valid().shape == planes.shape
    save_image(tmp_path / "b.png", image.like(planes))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "b.png")), whole)


def test_planes_keep_noise_and_errors() -> None:
    """The opponent transform is orthogonal: squared differences of planes are those of colours."""
    rng = np.random.default_rng(0)
    first, second = (LoadedImage(rng.random((5, 7, 3)), 1.0) for _ in range(2))
    apart = (first.tensor() - second.tensor()).square().sum()
    assert float(apart) == pytest.approx(float(np.square(first.values - second.values).sum()), rel=1e-5)
    assert torch.allclose(first.tensor()[0], torch.from_numpy(first.values.sum(-1) / 3**0.5).float())
    grey = LoadedImage(rng.random((4, 4)), 1.0).in_colour()
    assert torch.allclose(grey.tensor()[1:], torch.zeros(2, 4, 4), atol=1e-7)


def test_colour_in_numpy_files(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 60000, (4, 5, 3), dtype=np.uint16)
    np.save(tmp_path / "a.npy", values)
    image = load_image(tmp_path / "a.npy")
    assert image.peak == 65535
    assert np.array_equal(image.like(image.tensor()).values, values)
    with pytest.raises(BadImage, match=r"a uint16 image in colour cannot be written as .png; .*npy for colours of"):
        save_image(tmp_path / "b.png", image)


def test_predictions_are_rounded_and_clipped_not_wrapped() -> None:
    image = LoadedImage(np.ones((1, 4), dtype=np.uint8), 255.0)
    assert image.like(torch.tensor([[-1.0, 0.5, 0.9999, 7.0]])).values.tolist() == [[0, 128, 255, 255]]


@settings(deadline=None)
@given(arrays(np.float64, (3, 4), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_any_float_becomes_a_valid_integer(values: np.ndarray) -> None:
    out = as_dtype(values, np.dtype(np.uint16))
    inside = np.isfinite(values) & (values >= 0) & (values <= 65535)
    assert np.all(np.abs(out[inside].astype(float) - values[inside]) <= 0.5)


def test_not_a_number_is_no_reading() -> None:
    image = LoadedImage(np.array([[np.nan, 2.0, 0.0]]), 4.0)
    assert image.tensor().tolist() == [[[0.0, 0.5, 0.0]]]
    assert image.valid().tolist() == [[[False, True, False]]]


def test_prediction_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 2, 2\) does not fit an image of \(1, 4\); predict one image"):
        LoadedImage(np.ones((1, 4), dtype=np.uint8), 255.0).like(torch.ones(1, 2, 2))


def png_header(width: int, height: int, colour: int = 0) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def write_bad(path: Path, kind: str) -> Path:
    grey = Image.fromarray(ramp("uint16"))
    if kind == "missing":
        pass
    elif kind == "truncated":
        Image.fromarray(np.random.default_rng(0).integers(1, 60000, (64, 64)).astype(np.uint16)).save(path)
        path.write_bytes(path.read_bytes()[:2000])
    elif kind == "text":
        path.write_text("no image at all")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "32 bits":
        path = path.with_suffix(".tiff")
        Image.fromarray(np.ones((4, 4), np.int32)).save(path)
    elif kind == "16-bit colour":
        path.write_bytes(png_header(2, 2, colour=2))
    elif kind == "zero":
        Image.fromarray(np.zeros((4, 4), np.uint16)).save(path)
    elif kind == "bomb":
        path.write_bytes(png_header(9000, 9000))
    elif kind == "big bomb":
        path.write_bytes(png_header(60000, 60000))
    elif kind == "pages":
        path = path.with_suffix(".tiff")
        grey.save(path, save_all=True, append_images=[grey])
    elif kind == "npy stack":
        path = path.with_suffix(".npy")
        np.save(path, np.ones((4, 4, 5), np.float32))
    elif kind == "npy cut":
        path = path.with_suffix(".npy")
        np.save(path, np.ones((40, 40), np.float32))
        path.write_bytes(path.read_bytes()[:400])
    elif kind == "npy object":
        path = path.with_suffix(".npy")
        np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    return path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("missing", "there is no such file"),
        ("truncated", "is damaged or cut short"),
        ("text", "is not an image of a known format"),
        ("empty", "is not an image of a known format"),
        ("32 bits", "has pixels of type I, but grey of 8 bits, 16 bits or floats, or colour, is needed"),
        ("16-bit colour", "has 16 bits a colour, of which 8 would be lost; save it as .npy or in 8 bits"),
        ("zero", "every pixel is zero, so the frame holds no reading"),
        ("bomb", "claims 9000×9000 pixels, more than the 67108864 allowed; crop or shrink it"),
        ("big bomb", "claims more than the 67108864 pixels allowed; crop or shrink it first"),
        ("pages", "holds 2 pages; save the one to use on its own"),
        ("npy stack", "holds a float32 array of shape (4, 4, 5), but an image (H, W) or (H, W, 3) of 8 bits"),
        ("npy cut", "is not a numpy array, or is cut short"),
        ("npy object", "is not a numpy array, or is cut short"),
    ],
)
def test_bad_files_are_named_in_one_sentence(tmp_path: Path, kind: str, sentence: str) -> None:
    path = write_bad(tmp_path / "frame.png", kind)
    with pytest.raises(BadImage) as caught:
        load_image(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert sentence in message
    assert "\n" not in message


def test_peak_must_be_positive(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ramp("float32"))
    with pytest.raises(ValueError, match="peak is 0 but must be positive"):
        load_image(tmp_path / "a.npy", peak=0)


def test_floats_are_not_written_as_png(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"a float32 image cannot be written as \.png; use \.png for 8 and 16 bits"):
        save_image(tmp_path / "a.png", LoadedImage(ramp("float32"), 1.0))


def test_listing_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="holds no image"):
        list_images(tmp_path)
    with pytest.raises(BadImage, match="there is no such folder"):
        list_images(tmp_path / "none")
    for name in ("b.png", "a.TIFF", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ["a.TIFF", "b.png"]


def test_the_most_pixels_are_a_choice(tmp_path: Path) -> None:
    Image.fromarray(np.ones((20, 30), np.uint8)).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.ones((20, 30), np.float32))
    for name in ("a.png", "a.npy"):
        assert load_image(tmp_path / name, max_pixels=600).values.shape == (20, 30)
        with pytest.raises(
            BadImage, match=f"{name}: claims 30×20 pixels, more than the 599 allowed; crop or shrink it"
        ):
            load_image(tmp_path / name, max_pixels=599)
