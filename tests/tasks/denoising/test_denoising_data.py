"""Datasets give one kind of frame; crops are a pure function of (seed, epoch, index); errors name the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from spen.tasks.denoising import crops as crops_module
from spen.tasks.denoising.crops import CROP, Crops, Stack, crop_frame, windows
from spen.tasks.denoising.data import DepthPairs, Frame, Images, Rooms, Simulated
from spen.tasks.denoising.images import BadImage, list_images
from spen.tasks.denoising.noise import parse_noise
from spen.tasks.denoising.sensor import Sensor
from tests.tasks.denoising.few_rooms import Given, whole_rooms


def cut(
    frame: Frame, seed: int, epoch: int, index: int, size: tuple[int, int] = CROP, flips: bool = False
) -> Frame:  # parts (1, 1, *size)
    return Crops(Given(frame), size, seed, flips).batch(epoch, index, 1)


def write_pair(folder: Path, name: str, size: tuple[int, int] = (40, 50), seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    clean = np.full(size, 4000, np.uint16)  # half millimetres: 2 m
    raw = (2000 + rng.integers(-8, 9, size)).astype(np.uint16)
    clean[:4], raw[:, :6] = 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(raw).save(folder / f"{name}.raw.png")
    Image.fromarray(clean).save(folder / f"{name}.clean.png")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    for index in range(3):
        write_pair(tmp_path / "train", f"{index:06d}", seed=index)
    return tmp_path


@pytest.fixture
def greys(tmp_path: Path) -> Path:
    for index in range(2):
        values = np.random.default_rng(index).integers(1, 255, (30, 40 + index)).astype(np.uint8)
        Image.fromarray(values).save(tmp_path / f"{index}.png")
    return tmp_path


def check(frame: Frame) -> None:
    """What every frame obeys."""
    assert {part.shape for part in frame} == {frame.truth.shape}
    assert frame.truth.dim() == 3
    assert frame.truth.shape[0] == 1
    assert frame.noisy.dtype == frame.truth.dtype == torch.float32
    assert all(part.dtype == torch.bool for part in (frame.valid, frame.scored, frame.surface, frame.hole))
    assert not (frame.scored & frame.hole).any()
    assert not (frame.surface & ~frame.scored).any()
    assert torch.equal(frame.scored | frame.hole, frame.truth > 0)
    assert (frame.noisy[~frame.valid] == 0).all()


def test_pairs_by_value(pairs: Path) -> None:
    frames = DepthPairs(pairs, "train")
    assert len(frames) == 3
    assert frames.names[1] == "000001"
    frame = frames.frame(0)
    check(frame)
    raw = np.asarray(Image.open(pairs / "train" / "000000.raw.png")).astype(np.float32)
    assert torch.allclose(frame.noisy[0], torch.from_numpy(raw / 4000))
    assert torch.allclose(frame.truth[0, 4:], torch.tensor(0.5))
    assert frame.hole[0].sum() == 36 * 6
    assert frame.scored[0].sum() == 36 * 44
    assert torch.equal(frames.frame(0, epoch=5).noisy, frame.noisy)


def test_every_takes_every_nth(pairs: Path) -> None:
    frames = DepthPairs(pairs, "train", every=2)
    assert frames.names == ["000000", "000002"]


@pytest.mark.parametrize("epoch", [0, 3])
def test_simulated_sets_are_seeded_and_redrawn_each_epoch(pairs: Path, greys: Path, epoch: int) -> None:
    for make in (
        lambda seed: Rooms("dev", 4, seed=seed),
        lambda seed: Simulated(DepthPairs(pairs, "train"), parse_noise("depth-sensor:15"), seed=seed),
        lambda seed: Simulated(Images(list_images(greys)), parse_noise("gaussian:25"), seed=seed),
    ):
        frame = make(0).frame(1, epoch)
        check(frame)
        assert torch.equal(frame.noisy, make(0).frame(1, epoch).noisy)
        assert not torch.equal(frame.noisy, make(0).frame(1, epoch + 1).noisy)
        assert not torch.equal(frame.noisy, make(1).frame(1, epoch).noisy)
        assert torch.equal(frame.truth, make(0).frame(1, epoch + 1).truth)


def test_the_sensor_option_reaches_the_noise(pairs: Path) -> None:
    for frames in (
        Rooms("dev", 4, sensor=Sensor(strength=0.0)),
        Simulated(DepthPairs(pairs, "train"), parse_noise("depth-sensor:0")),
    ):
        frame = frames.frame(1)
        assert torch.allclose(frame.noisy[frame.scored], frame.truth[frame.scored], atol=1e-5)


def test_rooms_have_holes_and_surfaces() -> None:
    frame = Rooms("test", 2).frame(1)
    assert 0.001 < frame.hole.float().mean() < 0.3
    assert frame.surface.float().mean() > 0.3
    assert Rooms("test", 2).names == ["test-000000", "test-000001"]


def test_grey_noise_has_the_asked_deviation(greys: Path) -> None:
    for sigma in (0.0, 25.0, 50.0):
        frame = Simulated(Images(list_images(greys)), parse_noise(f"gaussian:{sigma}")).frame(0)
        assert float((frame.noisy - frame.truth).std()) * 255 == pytest.approx(sigma, rel=0.06)
    assert Images(list_images(greys)).names == ["0.png", "1.png"]
    truth = np.asarray(Image.open(greys / "0.png")) / 255
    assert torch.allclose(frame.truth[0], torch.from_numpy(truth).float())


# ── crops ──


def room() -> Frame:
    return whole_rooms().frame(0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(0, 99), st.integers(0, 10_000), st.booleans())
def test_a_crop_is_a_pure_function(seed: int, epoch: int, index: int, flips: bool) -> None:
    frame = room()
    torch.manual_seed(index)
    first = cut(frame, seed, epoch, index, flips=flips)
    torch.manual_seed(index + 1)
    np.random.seed(3)
    again = cut(frame, seed, epoch, index, flips=flips)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first.noisy.shape == (1, 1, 96, 128)


def test_crops_differ_by_seed_epoch_and_index(pairs: Path) -> None:
    def crops(seed: int) -> Crops:
        return Crops(DepthPairs(pairs, "train"), size=(8, 8), seed=seed)

    first = crops(0).batch(0, 0, 16).noisy
    assert first.shape == (16, 1, 8, 8)
    assert torch.equal(first, crops(0).batch(0, 0, 16).noisy)
    assert torch.equal(first[8:], crops(0).batch(0, 8, 8).noisy)  # resumed in the middle
    assert not torch.equal(first, crops(0).batch(1, 0, 16).noisy)
    assert not torch.equal(first, crops(1).batch(0, 0, 16).noisy)
    assert len({tuple(crop.flatten().tolist()) for crop in first}) > 12


def test_each_pass_meets_every_frame_once() -> None:
    for start in (0, 7, 14):
        assert sorted(crop_frame(0, 2, start + i, 7) for i in range(7)) == list(range(7))
    assert [crop_frame(0, 0, i, 50) for i in range(50)] != [crop_frame(0, 1, i, 50) for i in range(50)]


def test_a_sensor_reads_the_frames_of_every_batch_anew_and_again_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = whole_rooms()

    def crops(**options: Any) -> Crops:
        return Crops(rooms, noise=parse_noise("depth-sensor:12"), **options)

    first, plain = crops().batch(0, 0, 6), Crops(rooms).batch(0, 0, 6)
    assert torch.equal(first.truth, plain.truth)  # the same windows
    assert not torch.equal(first.noisy, plain.noisy)
    assert all(torch.equal(*parts) for parts in zip(first, crops().batch(0, 0, 6), strict=True))
    assert not torch.equal(first.noisy, crops(seed=1).batch(0, 0, 6).noisy)
    assert torch.equal(first.scored, first.valid & (first.truth > 0))
    assert torch.equal(first.hole, ~first.valid & (first.truth > 0))
    assert torch.equal(first.surface & ~first.valid, torch.zeros_like(first.valid))
    assert torch.equal(first.noisy == 0, ~first.valid)
    new, old = ((frame.noisy - frame.truth)[frame.surface].square().mean().sqrt() for frame in (first, plain))
    assert float(new) == pytest.approx(float(old), rel=0.2)
    monkeypatch.setattr(crops_module, "BYTES", 2**20)  # none fits: the frames of each batch are stacked
    many = crops().batch(0, 0, 6)
    assert torch.equal(many.truth, first.truth)
    error = (many.noisy - many.truth)[many.surface].square().mean().sqrt()
    assert float(error) == pytest.approx(float(old), rel=0.2)


def test_an_exact_sensor_sees_the_truth() -> None:
    """By value: no noise, no jitter, and nothing lost but what geometry hides."""
    exact = Crops(whole_rooms(), noise=parse_noise("depth-sensor:0")).batch(0, 0, 4)
    assert float(exact.valid.float().mean()) > 0.7
    assert torch.allclose(exact.noisy[exact.scored], exact.truth[exact.scored], atol=1e-6)
    # One frame twice in a batch is read twice.
    twice = Crops(Given(room()), size=(240, 320), noise=parse_noise("depth-sensor:12")).batch(0, 0, 2)
    assert torch.equal(twice.truth[0], twice.truth[1])
    assert not torch.equal(twice.noisy[0], twice.noisy[1])


def test_the_cache_is_bounded(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Crops(DepthPairs(pairs, "train"), size=(8, 8)).batch(0, 0, 9)
    monkeypatch.setattr(crops_module, "BYTES", 2 * 4 * 6 * 40 * 50)
    crops = Crops(DepthPairs(pairs, "train"), size=(8, 8))
    assert torch.equal(crops.batch(0, 0, 9).noisy, first.noisy)
    assert len(crops._cache) == 2


def test_frames_of_several_sizes_are_cut_as_if_each_were_alone() -> None:
    small = Frame(*(part[:, :60, :70] for part in room()))
    mixed, alone = Crops(Given(room(), small), (32, 40)), (Crops(Given(frame), (32, 40)) for frame in (room(), small))
    batch = mixed.batch(0, 0, 8)
    which = [crop_frame(0, 0, index, 2) for index in range(8)]
    for frame, crops in enumerate(alone):
        for index in (k for k in range(8) if which[k] == frame):
            assert torch.equal(batch.noisy[index], crops.batch(0, index, 1).noisy[0])


def test_flips_turn_crops_over() -> None:
    ramp = torch.arange(16.0).reshape(1, 4, 4) + 1
    every = torch.ones_like(ramp, dtype=torch.bool)
    frame = Frame(ramp, every, ramp, every, every, ~every)
    seen = {tuple(cut(frame, 0, 0, i, (4, 4), flips=True).noisy.flatten().tolist()) for i in range(64)}
    assert len(seen) == 8
    still = {tuple(cut(frame, 0, 0, i, (4, 4)).noisy.flatten().tolist()) for i in range(8)}
    assert still == {tuple(ramp.flatten().tolist())}


def test_crops_avoid_windows_without_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = torch.zeros(1, 64, 64)
    truth[:, :, 40:] = 0.5
    known = truth > 0
    frame = Frame(truth, known, truth, known, known, torch.zeros_like(known))
    shares = [cut(frame, 0, 0, i, (16, 16)).scored.float().mean().item() for i in range(50)]
    assert min(shares) > 0
    monkeypatch.setattr(crops_module, "LEAST_SCORED", 0.0)
    loose = [cut(frame, 0, 0, i, (16, 16)).scored.float().mean().item() for i in range(50)]
    assert min(loose) == 0


def test_a_crop_larger_than_the_image() -> None:
    with pytest.raises(ValueError, match="a crop of 128×96 does not fit in an image of 320×40"):
        cut(Frame(*[torch.ones(1, 40, 320)] * 6), 0, 0, 0)


# ── bad folders ──


def spoil(folder: Path, kind: str) -> None:
    raw, clean = folder / "000001.raw.png", folder / "000001.clean.png"
    if kind == "no clean":
        clean.unlink()
    elif kind == "no raw":
        raw.unlink()
    elif kind == "8 bits":
        Image.fromarray(np.ones((40, 50), np.uint8)).save(raw)
    elif kind == "size":
        write_pair(folder, "000001", size=(40, 48))
    elif kind == "zero":
        Image.fromarray(np.zeros((40, 50), np.uint16)).save(clean)
    elif kind == "cut":
        raw.write_bytes(raw.read_bytes()[:200])


@pytest.mark.parametrize(
    ("kind", "file", "sentence"),
    [
        ("no clean", "000001.raw.png", "its pair 000001.clean.png is missing"),
        ("no raw", "000001.clean.png", "its pair 000001.raw.png is missing"),
        ("8 bits", "000001.raw.png", "has 8 bits a pixel, but depth frames have 16"),
        ("size", "000001.raw.png", "is 48×40, but the frames before it are 50×40"),
        ("zero", "000001.clean.png", "every pixel is zero, so the frame holds no reading"),
        ("cut", "000001.raw.png", "is damaged or cut short"),
    ],
)
def test_bad_pairs_are_named(pairs: Path, kind: str, file: str, sentence: str) -> None:
    spoil(pairs / "train", kind)
    with pytest.raises(BadImage) as caught:
        Crops(DepthPairs(pairs, "train")).batch(0, 0, 3)
    assert str(caught.value).startswith(f"{pairs / 'train' / file}: ")
    assert sentence in str(caught.value)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="there is no such folder; frame pairs are in train, dev, test"):
        DepthPairs(tmp_path, "train")
    (tmp_path / "dev").mkdir()
    with pytest.raises(BadImage, match=r"holds no frame pair \(NNNNNN\.raw\.png and NNNNNN\.clean\.png\)"):
        DepthPairs(tmp_path, "dev")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Rooms("train", 0), "count is 0 but there must be at least one frame"),
        (lambda: Rooms("all", 1), "split is 'all' but must be one of train, dev, test"),
    ],
)
def test_wrong_options(make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_batch_is_the_windows_of_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """By value, from all frames at once and from the frames of a batch."""
    rooms, indices = whole_rooms(), np.arange(5, 17)
    which = np.array([crop_frame(0, 1, index, 3) for index in indices.tolist()])
    integrals = Stack.of(dict(enumerate(rooms.frames)), torch.device("cpu")).integrals
    places = windows(integrals, which, 0, 1, indices, (32, 32), flips=True)
    assert len(set(zip(*(part.tolist() for part in places[2:]), strict=True))) > 4  # flipped in several directions
    for many in (False, True):
        if many:
            monkeypatch.setattr(crops_module, "BYTES", 2**20)
        batch = Crops(rooms, (32, 32), flips=True).batch(1, 5, 12)
        for k, (frame, top, left, upside_down, mirrored, transposed) in enumerate(zip(which, *places, strict=True)):
            truth = rooms.frames[frame].truth[0, top : top + 32, left : left + 32].numpy()
            truth = truth[:: -1 if upside_down else 1, :: -1 if mirrored else 1]
            assert np.array_equal(batch.truth[k, 0].numpy(), truth.T if transposed else truth)
