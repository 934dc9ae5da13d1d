"""A synthetic sequence of known geometry: fused truth against exact truth, and the whole way to frame pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spen.tasks.denoising.data import DepthPairs
from spen.tasks.denoising.images import BadImage
from spen.tasks.denoising.rooms.shapes import Camera, ball, box, cast, rod, tilt, yaw
from spen.tasks.denoising.sevenscenes import fusion
from spen.tasks.denoising.sevenscenes.fusion import Pinhole, View, Volume, fuse, touched_blocks
from spen.tasks.denoising.sevenscenes.prepare import align, list_shots, prepare, read_depth, read_pose, split_shots

CAMERA = Pinhole(focal=75.0, cu=40.0, cv=30.0, height=60, width=80)
AHEAD = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
ROOM = box((-1.2, -1.0, -0.9), (1.2, 1.6, 0.9))
THINGS = [
    box((-0.7, 1.0, -0.9), (-0.1, 1.4, 0.1), yaw(0.4)),
    ball((0.45, 1.1, -0.2), 0.3),
    rod((0.1, 0.9, -0.9), (0.1, 0.9, 0.5), 0.06),
]


def poses(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    turns = [AHEAD @ yaw(rng.normal(0, 0.05)) @ tilt(rng.normal(0, 0.05)) for _ in range(count)]
    return [(turn, rng.normal(0, 0.06, 3)) for turn in turns]


def exact(rotation: np.ndarray, position: np.ndarray) -> np.ndarray:  # (60, 80) metres
    return cast(THINGS, Camera(rotation, position, CAMERA.height, CAMERA.width, CAMERA.focal), background=ROOM)


def as_pose(rotation: np.ndarray, position: np.ndarray) -> torch.Tensor:
    pose = torch.eye(4)
    pose[:3, :3], pose[:3, 3] = torch.from_numpy(rotation), torch.from_numpy(position)
    return pose


def noisy_views(count: int, noise: float) -> list[View]:
    rng = np.random.default_rng(1)
    views = []
    for rotation, position in poses(count):
        depth = exact(rotation, position)
        depth = depth + (rng.normal(0, noise, depth.shape) * depth**2).astype(np.float32)
        views.append(View(torch.from_numpy(depth), as_pose(rotation, position)))
    return views


@pytest.fixture(scope="module")
def fused() -> Volume:
    return fuse(noisy_views(16, 0.006), CAMERA, voxel=0.015)


def error(volume: Volume, index: int = 0) -> tuple[np.ndarray, float]:
    rotation, position = poses(16)[index]
    truth = exact(rotation, position)
    depth = volume.raycast(as_pose(rotation, position), CAMERA).numpy()
    return np.abs(depth - truth)[depth > 0], float((depth > 0).mean())


def test_fused_truth_is_the_geometry(fused: Volume) -> None:
    errors, cover = error(fused)
    assert cover > 0.9
    assert np.median(errors) < 0.003  # readings are 8 mm off at 1.4 m
    assert np.quantile(errors, 0.9) < 0.012


def test_a_pose_that_was_never_taken(fused: Volume) -> None:
    rotation, position = AHEAD @ yaw(0.03), np.array([0.03, 0.02, 0.01])
    depth = fused.raycast(as_pose(rotation, position), CAMERA).numpy()
    assert np.median(np.abs(depth - exact(rotation, position))[depth > 0]) < 0.004


def test_more_frames_are_better() -> None:
    few, many = (np.median(error(fuse(noisy_views(n, 0.01), CAMERA, voxel=0.015))[0]) for n in (2, 16))
    assert many < 0.7 * few


def test_voxel_truncation_and_chunk_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    views = noisy_views(3, 0.0)
    coarse, fine = fuse(views, CAMERA, voxel=0.04), fuse(views, CAMERA, voxel=0.02)
    assert len(fine.blocks) > 2 * len(coarse.blocks)
    assert np.median(error(fine)[0]) < np.median(error(coarse)[0])
    wide = fuse(views, CAMERA, voxel=0.02, truncation=0.2)
    assert len(wide.blocks) > len(fine.blocks)
    monkeypatch.setattr(fusion, "CHUNK", 16)
    small = fuse(views, CAMERA, voxel=0.02)
    assert torch.equal(small.distance, fine.distance)


def test_near_and_far_bound_the_rays(fused: Volume) -> None:
    rotation, position = poses(16)[0]
    pose = as_pose(rotation, position)
    assert fused.raycast(pose, CAMERA, far=1.0).max() < 1.1
    beyond = fused.raycast(pose, CAMERA, near=1.25)
    assert beyond[beyond > 0].min() > 1.2


def test_what_no_frame_saw_has_no_surface(fused: Volume) -> None:
    behind = as_pose(AHEAD @ yaw(0.0) @ np.diag([-1.0, 1.0, -1.0]), np.zeros(3))
    assert (fused.raycast(behind, CAMERA) == 0).all()


def test_blocks_hold_the_band_around_a_reading() -> None:
    view = View(torch.full((60, 80), 1.0), torch.eye(4))
    blocks = touched_blocks(view, CAMERA, voxel=0.01, truncation=0.05)
    side = 0.08
    assert blocks[:, 2].min() * side <= 0.95
    assert (blocks[:, 2].max() + 1) * side >= 1.05
    assert len(torch.unique(blocks, dim=0)) == len(blocks)


@pytest.mark.parametrize(
    ("views", "options", "sentence"),
    [
        ([], {}, "there are no frames to fuse"),
        ([View(torch.zeros(60, 80), torch.eye(4))], {}, "no frame has a reading in range, so there is nothing to fuse"),
        ([], {"voxel": 0.0}, "voxel is 0.0 m but must be positive"),
        ([], {"voxel": 0.1, "truncation": 0.1}, "truncation is 0.1 m but must be at least two voxels"),
    ],
)
def test_wrong_arguments(views: list[View], options: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fuse(views, CAMERA, **options)


# ── 7-Scenes on disk ──


def write_scene(folder: Path, per_sequence: int = 8) -> Path:
    for number, (view, pose) in enumerate(zip(noisy_views(2 * per_sequence, 0.002), poses(16), strict=False)):
        sequence = folder / f"seq-{number // per_sequence + 1:02d}"
        sequence.mkdir(parents=True, exist_ok=True)
        millimetres = np.rint(view.depth.numpy() * 1000).astype(np.uint16)
        millimetres[10:14, 20:30], millimetres[40:44, 60:64] = 65535, 0
        stem = f"frame-{number % per_sequence:06d}"
        Image.fromarray(millimetres).save(sequence / f"{stem}.depth.png")
        np.savetxt(sequence / f"{stem}.pose.txt", as_pose(*pose).numpy(), delimiter="\t ")
    (folder / "TrainSplit.txt").write_text("sequence1\n")
    (folder / "TestSplit.txt").write_text("sequence2\n")
    return folder


def test_from_download_to_frame_pairs(tmp_path: Path) -> None:
    scene, seen = write_scene(tmp_path / "toy"), []

    def progress(shots, total, what):  # type: ignore[no-untyped-def]
        seen.append((what, total))
        return shots

    out = tmp_path / "out"
    counts = prepare(scene, out, voxel=0.015, camera=CAMERA, progress=progress)
    assert counts == {"train": 6, "dev": 1, "test": 8}
    assert seen == [("fusing", 16)] * 2 + [("ray-casting train", 6), ("ray-casting dev", 1), ("ray-casting test", 8)]
    frames = DepthPairs(out, "test")
    assert [frames.names[i] for i in (0, 7)] == ["020000", "020007"]
    frame = frames.frame(0)
    assert frame.noisy.shape == (1, 30, 40)
    assert frame.hole[0, 5:7, 10:15].float().mean() > 0.8  # the hole has been filled from other frames
    truth = exact(*poses(16)[8])[::2, ::2] / 4
    off = (frame.truth[0].numpy() - truth)[frame.scored[0].numpy()] * 4000
    assert np.median(np.abs(off)) < 3.0
    raw = np.asarray(Image.open(out / "test" / "020000.raw.png"))
    given = read_depth(scene / "seq-02" / "frame-000000.depth.png", CAMERA)
    assert np.array_equal(raw, given[::2, ::2])


def test_far_readings_are_left_out(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "toy", per_sequence=2)
    prepare(scene, tmp_path / "a", voxel=0.03, camera=CAMERA)
    prepare(scene, tmp_path / "b", voxel=0.03, camera=CAMERA, far=1.2)
    near, all_ = (DepthPairs(tmp_path / name, "test").frame(0).truth.max() for name in ("b", "a"))
    assert near < 1.8 / 4
    assert all_ <= 0.5
    assert near < all_


def test_splits_without_files_are_by_time(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "toy")
    (scene / "TestSplit.txt").unlink()
    splits = split_shots(scene, list_shots(scene))
    numbers = [[8 * shot.sequence + shot.number for shot in splits[name]] for name in ("train", "dev", "test")]
    assert all(numbers)
    assert max(numbers[0]) < min(numbers[1])
    assert max(numbers[1]) < min(numbers[2])


def test_a_sequence_in_both_splits(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "toy", per_sequence=1)
    (scene / "TestSplit.txt").write_text("sequence1\nsequence2\n")
    with pytest.raises(ValueError, match=r"sequence 1 is in both TrainSplit\.txt and TestSplit\.txt"):
        split_shots(scene, list_shots(scene))


def test_alignment_takes_the_slow_part_alone() -> None:
    clean = np.full((120, 160), 1500.0)
    slow = 12 * np.sin(np.arange(160) / 60)
    raw = clean + slow + np.random.default_rng(0).normal(0, 5, clean.shape)
    raw[50:60, 50:60], clean[80:90] = 0, 0
    raw[20, 20] = 1560
    truth = align(raw, clean)
    inside = (slice(30, 70), slice(60, 120))
    assert np.abs(truth[inside] - (1500 + slow)[60:120]).max() < 3
    assert truth[20, 20] == 0
    assert (truth[80:90] == 0).all()
    assert (truth[50:60, 50:60] > 0).all()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda d: (d / "frame-000000.pose.txt").unlink(), "its pose frame-000000.pose.txt is missing"),
        (lambda d: (d / "frame-000000.pose.txt").write_text("1 2 3"), "is not a pose of four lines of four numbers"),
        (lambda d: (d / "frame-000000.pose.txt").write_text("a b c d\n" * 4), "is not a pose of four lines of four"),
        (lambda d: Image.new("L", (80, 60), 5).save(d / "frame-000000.depth.png"), "has 8 bits a pixel, but depth"),
        (
            lambda d: Image.fromarray(np.ones((4, 6), np.uint16)).save(d / "frame-000000.depth.png"),
            "is 6×4, but the camera gives 80×60",
        ),
        (lambda d: (d / "frame-000000.depth.png").rename(d / "frame-x.depth.png"), "is not named as seq-NN/frame-NNNN"),
    ],
)
def test_bad_scenes_are_named(tmp_path: Path, spoil, sentence: str) -> None:  # type: ignore[no-untyped-def]
    scene = write_scene(tmp_path / "toy", per_sequence=1)
    spoil(scene / "seq-01")
    with pytest.raises(BadImage) as caught:
        prepare(scene, tmp_path / "out", voxel=0.05, camera=CAMERA)
    assert str(scene / "seq-01") in str(caught.value)
    assert sentence in str(caught.value)


def test_a_folder_without_frames(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"holds no seq-NN/frame-NNNNNN\.depth\.png"):
        list_shots(tmp_path)


def test_a_pose_by_value(tmp_path: Path) -> None:
    path = tmp_path / "frame.pose.txt"
    path.write_text("1 0 0 0.5\n0 1 0 -2e-1\n0 0 1 3\n0 0 0 1\n\n")
    assert read_pose(path)[:3, 3].tolist() == pytest.approx([0.5, -0.2, 3.0])


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="compares fusion on a GPU with the CPU's, which the other tests check; this machine has no GPU",
)
def test_the_gpu_agrees() -> None:
    views = noisy_views(3, 0.002)
    there = [View(view.depth.cuda(), view.pose.cuda()) for view in views]
    a, b = fuse(views, CAMERA, voxel=0.02), fuse(there, CAMERA, voxel=0.02)
    one, two = a.raycast(views[0].pose, CAMERA), b.raycast(there[0].pose, CAMERA).cpu()
    assert ((one - two).abs() < 1e-3).float().mean() > 0.99
