"""Every recipe is found, built and trained two steps; runs come back; images keep their units."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spen.models import open_model, shipped
from spen.tasks.denoising.baselines.classical import CANDIDATES
from spen.tasks.denoising.build import build, build_model, build_objective, whole_truth
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import load_image
from spen.tasks.denoising.losses import Target, masked_squared_error, summed_squared_error
from spen.tasks.denoising.methods import Classical, System
from spen.tasks.denoising.metrics import psnr
from spen.tasks.denoising.predict import FileDenoiser
from spen.tasks.denoising.recipes import RECIPES, find_recipe
from spen.tasks.denoising.regimes import REGIMES, find_regime
from spen.tasks.denoising.reproduce import Job, run_job
from spen.tasks.denoising.sources import PSNR, CropSource, FrameSource
from spen.tasks.denoising.train import evaluate, train
from spen.tasks.task import ReproduceOrder
from tests.cli import world
from tests.tasks.denoising.few_rooms import few_rooms, whole_rooms

TINY = {"batches": 2, "per_epoch": 2, "batch_size": 1, "crop": (24, 32), "width": 4, "warmup": 1}


COMPILED = ("foe-3", "dp-3", "dp-icnn")  # one of each kind of energy: compiling takes seconds


def _small(name: str) -> dict[str, object]:
    options, method = dict(TINY), find_recipe(name).method
    if isinstance(method, System):
        options |= {"steps": min(3, method.steps)} | (
            {} if name in COMPILED or method.prior == "unet" else {"gradient": "exact"}
        )
    return options


@pytest.mark.parametrize("name", [n for n, r in RECIPES.items() if not isinstance(r.method, Classical)])
def test_every_recipe_trains_two_steps(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe = find_recipe(name).with_options(**_small(name))
    model, objective = build(recipe, find_regime("rooms"))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    source = CropSource(Crops(whole_rooms(), recipe.schedule.crop), 1, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for x, y in source.batches(0):
        optimizer.zero_grad()
        loss = objective(model, x, y)
        loss.backward()
        optimizer.step()
        assert bool(loss.isfinite())
    moved = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
    assert moved
    assert recipe.describe()["name"] == name


def test_a_run_is_trained_scored_and_loaded(tmp_path: Path) -> None:
    recipe = find_recipe("dp-3").with_options(**_small("dp-3"), gradient="exact")
    run = train(recipe, find_regime("rooms"), tmp_path / "run", splits=few_rooms(), accelerator="cpu", progress=False)
    assert run is not None
    opened = open_model(run.folder)
    denoise, model = opened.denoise, opened.model
    assert model is not None
    assert model.energy.parts["prior"].energy.first.out_channels == 4  # type: ignore[operator, union-attr, index]
    scores = evaluate(denoise, few_rooms().train, every=2)
    assert scores["frames"] == 2
    assert scores["psnr"] > 25


def test_a_row_that_fails_is_told_and_the_rest_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEN_DATA", str(tmp_path / "nowhere"))
    result = run_job(Job("dp-3", 0, ReproduceOrder(tmp_path, "redkitchen", quick=True, device="cpu")))
    assert result["problem"].startswith("no denoising/redkitchen under")
    with pytest.raises(FileNotFoundError, match=r"no denoising/redkitchen under .*; set SPEN_DATA"):
        open_splits(find_regime("redkitchen"))


def test_half_of_the_frames_to_choose_by_leaves_the_test_split_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.depth_pairs(tmp_path / "denoising" / "redkitchen", train=4)
    monkeypatch.setenv("SPEN_DATA", str(tmp_path))
    whole, half = open_splits(find_regime("redkitchen")), open_splits(find_regime("redkitchen-half"))
    assert half.train.names == ["000000", "000001"]
    assert len(whole.train) == 4
    assert half.test is half.dev
    assert find_recipe("spen-best", "redkitchen-half") == find_recipe("spen-best", "redkitchen")
    run = train(find_recipe("tv"), find_regime("redkitchen-half"), tmp_path / "run", accelerator="cpu", progress=False)
    assert run is not None
    tried = json.loads((run.folder / "chosen.json").read_text())["scores"]
    assert [options for options, _ in tried] == [asdict(candidate) for candidate in CANDIDATES["tv", True]]


def test_quick_plans_touch_only_what_descends() -> None:
    quick, whole = (ReproduceOrder(Path("out"), "rooms", quick=quick) for quick in (True, False))
    assert Job("tv", 0, quick).planned() == find_recipe("tv")
    assert Job("dp-3", 0, quick).planned().schedule.batches < find_recipe("dp-3").schedule.batches
    assert Job("dp-3", 0, whole).planned() == find_recipe("dp-3")


def test_options_from_a_command_line_take_the_right_type() -> None:
    recipe = find_recipe("dp-3").with_options(
        steps="5", learn_rates="false", crop="48x64", rate="0.3", gradient="exact"
    )
    assert isinstance(recipe.method, System)
    assert (recipe.method.steps, recipe.method.learn_rates, recipe.method.rate) == (5, False, 0.3)
    assert recipe.schedule.crop == (48, 64)
    for options, sentence in [
        (
            {"step": "5"},
            r"recipe dp-3 has no option 'step'; it has average, average_pooling, batch_size, batches",
        ),
        ({"steps": "five"}, "steps is a whole number, not 'five'"),
        ({"blind": "yes"}, "blind is true or false, not 'yes'"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            find_recipe("dp-3").with_options(**options)
    with pytest.raises(ValueError, match="there is no denoising recipe 'dp-4'; there are bm3d, tv"):
        find_recipe("dp-4")
    with pytest.raises(ValueError, match="there is no denoising data set 'moon'; there are rooms"):
        find_regime("moon")


def test_objectives_and_strategies_follow_the_recipe() -> None:
    names = {n: type(build_objective(r.method)).__name__ for n, r in RECIPES.items() if isinstance(r.method, System)}
    assert names["foe-ssvm"] == names["dp-ssvm"] == "StructuredHinge"
    assert names["dp-3"] == names["foe-20"] == "EndToEnd"
    assert build_objective(find_recipe("foe-20").method).weights == "last"  # type: ignore[arg-type, attr-defined]
    for gradient in ("auto", "exact", "checkpointed", "finite-difference", "forward-over-reverse"):
        method = find_recipe("dp-3").with_options(gradient=gradient).method
        assert isinstance(method, System)
        name = type(build_model(method, 2.5).minimizer.gradient).__name__
        assert name.lower() == gradient.replace("-", "")


def test_the_papers_settings_are_in_the_recipes() -> None:
    for name, recipe in RECIPES.items():
        if isinstance(recipe.method, System) and recipe.method.prior in ("foe", "deep"):
            assert recipe.method.momentum == (0.75 if name.endswith("foe-20") else 0.25)
            assert recipe.method.temperature == 25
            assert (recipe.method.width, recipe.method.size) == (32, 7)
            assert recipe.schedule.crop == (96, 128)
    assert REGIMES["simulated"].scale == 2.5


def test_losses_and_psnr_by_value() -> None:
    y, truth = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.1)
    scored = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]], [[[1.0, 1.0], [1.0, 1.0]]]])
    y[0, 0, 0, 1] = 9.0  # not scored
    assert masked_squared_error(y, Target(truth, scored)).tolist() == pytest.approx([0.01, 0.01])
    assert summed_squared_error(y, Target(truth, scored)).tolist() == pytest.approx([0.02, 0.04])
    metric = PSNR()
    metric.update(y, Target(truth, scored))
    assert float(metric.compute()) == pytest.approx(20.0, abs=1e-5)


def test_the_structured_svm_compares_with_a_truth_without_cliffs() -> None:
    truth = torch.full((1, 1, 8, 8), 0.5)
    truth[..., 3:5, 3:5] = 0.0  # not known
    scored = (truth > 0).float()
    assert torch.allclose(whole_truth(Target(truth, scored)), torch.full_like(truth, 0.5))
    black = Target(truth, torch.ones_like(truth))  # a grey image: black, and known
    assert torch.equal(whole_truth(black), truth)
    for name in ("foe-ssvm", "dp-ssvm"):
        torch.manual_seed(0)
        model, objective = build(find_recipe(name).with_options(width=4), find_regime("rooms"))
        x = Observation(0.5 + 0.05 * torch.randn(1, 1, 8, 8), scored)
        filled = Target(torch.full_like(truth, 0.5), scored)
        assert torch.equal(objective(model, x, Target(truth, scored)), objective(model, x, filled))


def test_frames_come_once_each_and_processes_share_them() -> None:
    source = FrameSource(Rooms("dev", 3), 2)
    assert source.count() == 2
    assert [len(x.image) for x, _ in source.batches(0)] == [2, 1]
    assert source.count(2) == 1
    assert [len(next(iter(source.batches(0, rank, 2)))[0].image) for rank in (0, 1)] == [2, 1]
    assert [(source.count(3), source.own(rank, 3)) for rank in range(3)] == [(1, 1), (1, 1), (1, 0)]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_prediction_keeps_bit_depth_units_and_size(tmp_path: Path, dtype: str) -> None:
    frame = Rooms("test", 1).frame(0)
    noisy = frame.noisy[0, 50:91, 60:107].numpy()
    if dtype == "uint8":
        path, values = tmp_path / "a.png", (noisy * 255).astype(np.uint8)
        Image.fromarray(values).save(path)
    elif dtype == "uint16":
        path, values = tmp_path / "a.png", (noisy * 4000).astype(np.uint16)
        Image.fromarray(values).save(path)
    else:
        path, values = tmp_path / "a.tiff", noisy.astype(np.float32)
        Image.fromarray(values).save(path)
    target = tmp_path / f"clean{path.suffix}"
    assert list(FileDenoiser(open_model("dp-3").denoise).files([path], target)) == [target]
    clean = load_image(target)
    assert clean.values.dtype == values.dtype
    assert clean.values.shape == values.shape
    truth, scored = frame.truth[:, 50:91, 60:107], frame.scored[:, 50:91, 60:107]
    assert float(psnr(clean.tensor(), truth, scored)) > float(psnr(frame.noisy[:, 50:91, 60:107], truth, scored)) + 3


def test_folders_are_denoised_and_sources_are_safe(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name in ("b.png", "a.png"):
        Image.fromarray(np.full((9, 7), 90, np.uint8)).save(source / name)
    denoise = open_model("dp-3").denoise
    written = list(FileDenoiser(denoise).files([source], tmp_path / "out"))
    assert [p.name for p in written] == ["a.png", "b.png"]
    with pytest.raises(ValueError, match="would be overwritten by the answer for .*; give another -o"):
        list(FileDenoiser(denoise).files([source], source))
    with pytest.raises(ValueError, match=r"'dp-9' is neither a run folder nor a model of the package \(depth, dp-3, "):
        open_model("dp-9")
    assert {"dp-3", "srl-grammar"} <= set(shipped())


@pytest.mark.parametrize("option", ["true", "false"])
def test_crops_are_flipped_and_read_anew_when_asked(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Crops] = []

    def crops(*args: object, **options: object) -> Crops:
        made.append(Crops(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("spen.tasks.denoising.train.Crops", crops)
    few = {"batches": 1, "batch_size": 1, "crop": "16x16", "width": 2, "warmup": 0, "flips": option, "fresh": option}
    recipe, regime = find_recipe("foe-3").with_options(**few), find_regime("rooms")
    train(recipe, regime, tmp_path, splits=few_rooms(), accelerator="cpu", progress=False)
    assert [(one.flips, one.noise) for one in made] == [(True, regime.noise) if option == "true" else (False, None)]


def test_real_readings_cannot_be_drawn_anew(tmp_path: Path) -> None:
    recipe = find_recipe("foe-3").with_options(fresh=True)
    with pytest.raises(ValueError, match="fresh is for simulated readings, and those of redkitchen are real"):
        train(recipe, find_regime("redkitchen"), tmp_path, splits=few_rooms())
