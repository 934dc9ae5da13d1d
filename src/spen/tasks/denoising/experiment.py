"""Train a recipe on a data set, score it on another split, load it again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import spen
from spen.builders import Origin
from spen.domains import Reals
from spen.gradients import Exact
from spen.objectives import Feedforward
from spen.pretrained import complete, fitting, is_pretrained, read_config
from spen.protocols import Objective
from spen.rules import GradientDescent
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import GREY_SIGMA, DepthPairs, Frames, GreyImages, Rooms, SimulatedSensor
from spen.tasks.denoising.kept import KeptFrames
from spen.tasks.denoising.metrics import hole_rmse_mm, mean_over_frames, psnr
from spen.tasks.denoising.priors import DataTerm, Observation
from spen.tasks.denoising.recipes import Classical, Network, Recipe, Regime, System, find_recipe, find_regime
from spen.tasks.denoising.scoring import PSNR, CropSource, FrameSource, masked_squared_error, observation
from spen.tasks.denoising.sensor import STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_ROOMS, Sensor
from spen.tasks.denoising.systems import DenoiserPretraining, build_model, build_objective
from spen.tasks.denoising.unet import UNetDenoiser, UNetPrior
from spen.tasks.locations import find_data
from spen.training import Run, Stage, fit, joint

Denoise = Callable[[Observation], Tensor]


@dataclass(frozen=True)
class Splits:
    """Three sets of frames that share no scene (or, on RedKitchen, no moment)."""

    train: Frames
    dev: Frames
    test: Frames


SPLIT_NAMES = ("train", "dev", "test")


def open_splits(regime: Regime, *, quick: bool = False, cache: Path | str | None = None) -> Splits:
    """The frames of a data set; ``quick`` takes a few of them, for a demonstration. ``cache`` may hold them ready."""
    kept = [] if cache is None else [kept_path(cache, name, quick) for name in SPLIT_NAMES]
    if kept and all(path.exists() for path in kept):
        return Splits(*map(KeptFrames, kept))
    if regime.name == "rooms":
        counts = (24, 4, 6) if quick else (200, 40, 100)
        return Splits(*(Rooms(split, n) for split, n in zip(SPLIT_NAMES, counts, strict=True)))
    assert regime.needs is not None
    folder = find_data(*regime.needs.split("/"))
    every = (8, 8, 20) if quick else (1, 2, 1)
    if regime.name == "gaussian":
        # Every twentieth training image is kept apart to choose by; set12 is looked at once.
        images = GreyImages(folder)
        chosen = [i for i in range(len(images)) if i % 20]
        apart = [i for i in range(len(images)) if not i % 20]
        test = GreyImages(find_data("denoising", "set12"), seed=1)
        return Splits(Subset(images, chosen[:: every[0]]), Subset(images, apart), test)
    pairs = [DepthPairs(folder, s, every=e) for s, e in zip(SPLIT_NAMES, every, strict=True)]
    if regime.name == "redkitchen":
        return Splits(*pairs)
    if regime.name == "redkitchen-half":
        # Development frames follow training frames by three seconds: what fits them well may fit the room alone. The
        # first half lies as far from them as the test split from all of it.
        train, dev, _ = pairs
        return Splits(Subset(train, list(range(len(train) // 2))), dev, dev)
    return Splits(*(SimulatedSensor(p, seed=k) for k, p in enumerate(pairs)))


def kept_path(cache: Path | str, split: str, quick: bool) -> Path:
    """Where the frames of a split are kept for many processes."""
    return Path(cache) / f"{split}{'-quick' if quick else ''}.safetensors"


class Subset:
    """Some frames of a set."""

    def __init__(self, frames: Frames, indices: list[int]) -> None:
        self.frames, self.indices = frames, indices

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.frames.name(self.indices[index])

    def frame(self, index: int, epoch: int = 0) -> Any:
        return self.frames.frame(self.indices[index], epoch)


def build(recipe: Recipe, regime: Regime) -> tuple[spen.SPEN, Objective]:
    """The model of a recipe and the objective it is trained with. A network is a SPEN whose Init does everything."""
    objective: Objective
    if isinstance(recipe.method, System):
        model, objective = build_model(recipe.method, regime.scale), build_objective(recipe.method)
    elif isinstance(recipe.method, Network):
        minimizer = spen.Minimizer(Reals(), GradientDescent(1, 1e-3), Exact())
        model = spen.SPEN(energy=DataTerm(), init=_network(recipe.method, regime.scale), minimizer=minimizer)
        objective = Feedforward(masked_squared_error)
    else:
        raise ValueError(f"{recipe.name} has nothing to train by gradient")
    settings = {"recipe": recipe.name, "data": regime.name, "options": asdict(recipe.method)}
    model.origin = Origin("denoising", settings)
    return model, objective


def rebuild(recipe: str, data: str, options: dict[str, Any]) -> spen.SPEN:
    """The model of a recipe, from what a saved model's config.json says of it."""
    return build(find_recipe(recipe).restored(options), find_regime(data))[0]


def _network(method: Network, scale: float) -> nn.Module:
    from spen.tasks.denoising.baselines import ConvNet, ProximalNet

    if method.kind == "unet":
        prior = UNetPrior(
            method.width,
            method.blocks,
            scales=method.scales,
            scale=method.gain * scale,
            blind=method.blind,
            precision=torch.bfloat16,
            compiled=True,
        )
        return UNetDenoiser(prior)
    if method.kind == "convnet":
        return ConvNet(
            width=method.width,
            depth=method.depth,
            size=method.size,
            residual=method.residual,
            blind=method.blind,
            mask=method.mask,
            scale=scale,
        )
    return ProximalNet(filters=method.width, size=method.size, iterations=method.iterations, scale=scale)


def describe_run(recipe: Recipe, regime: Regime, *, quick: bool = False) -> dict[str, Any]:
    """What a run folder says was trained in it."""
    return {**recipe.describe(), "data": regime.name, "quick": quick}


def train(
    recipe: Recipe,
    regime: Regime,
    out: Path | str,
    *,
    seed: int = 0,
    quick: bool = False,
    accelerator: str = "auto",
    devices: int = 1,
    progress: bool | None = None,
    seconds: float | None = None,
    cache: Path | str | None = None,
) -> Run | None:
    """Train into a run folder; None if ``seconds`` ran out before the end (call again to go on)."""
    splits = open_splits(regime, quick=quick, cache=cache)
    description = describe_run(recipe, regime, quick=quick)
    if isinstance(recipe.method, Classical):
        return _fit_classical(recipe.method, splits, Run.begin(out, description, seed), regime, seed)
    torch.manual_seed(seed)
    model, objective = build(recipe, regime)
    schedule = recipe.schedule
    on_gpu = accelerator != "cpu" and devices == 1 and torch.cuda.is_available()
    gaussian = regime.name == "gaussian"
    crops = Crops(
        splits.train,
        schedule.crop,
        seed=seed,
        flips=gaussian or schedule.flips,
        sigma=GREY_SIGMA if gaussian else 0.0,
        device="cuda" if on_gpu else "cpu",
        sensor=_sensor(regime) if schedule.fresh else None,
    )
    source = CropSource(crops, schedule.batch_size, schedule.epoch_batches)
    return fit(
        model,
        stages_of(recipe, objective),
        source,
        FrameSource(splits.dev, 4),
        PSNR(),
        out=out,
        seed=seed,
        recipe=description,
        accelerator=accelerator,
        devices=devices,
        progress=progress,
        seconds=seconds,
    )


def _sensor(regime: Regime) -> Sensor | None:
    """The one that reads frames anew where readings are simulated; noise of grey images is new in any case."""
    if regime.name in ("redkitchen", "redkitchen-half"):
        raise ValueError(f"fresh is for simulated readings, and those of {regime.name} are real")
    strengths = {"rooms": STRENGTH_30DB_ROOMS, "simulated": STRENGTH_30DB_REDKITCHEN}
    return Sensor(strengths[regime.name]) if regime.name in strengths else None


def stages_of(recipe: Recipe, objective: Objective) -> list[Stage]:
    """Everything together; for the energy of a denoiser, the denoiser first."""
    schedule = recipe.schedule
    whole = joint(
        objective,
        epochs=schedule.epochs,
        learning_rate=schedule.learning_rate,
        warmup=schedule.warmup,
        decay_to=schedule.decay_to,
        clip=schedule.clip,
        epsilon=schedule.epsilon,
        keep_start=False,
        average=schedule.average,
        seconds=schedule.seconds or None,
    )
    share = schedule.pretrain
    if not share:
        return [whole]
    if not isinstance(recipe.method, System) or recipe.method.prior != "unet":
        raise ValueError(f"pretrain is for the energy of a denoiser (prior=unet), which {recipe.name} is not")
    if not 0 < share < 1:
        raise ValueError(f"pretrain is a share of training between 0 and 1, not {share}")

    def part(stage: Stage, share: float) -> Stage:
        seconds = None if whole.seconds is None else share * whole.seconds
        return replace(stage, epochs=max(1, round(share * whole.epochs)), seconds=seconds)

    first = replace(
        whole,
        name="pretrain",
        objective=DenoiserPretraining(masked_squared_error),
        learning_rate=schedule.pretrain_rate,
    )
    return [part(first, share), part(whole, 1 - share)]


def _fit_classical(method: Classical, splits: Splits, run: Run, regime: Regime, seed: int) -> Run:
    """Choose the one number of a classical method by the development set, or grow the forest."""
    from spen.tasks.denoising import baselines

    began = time.monotonic()
    path = run.folder / "chosen.json"
    if method.kind == "forest":
        target = run.folder / "forest.safetensors"
        if not target.exists():
            frames = [splits.train.frame(i) for i in range(len(splits.train))]
            baselines.FilterForest.fit(frames, seed=seed).save(target)
    elif not path.exists():
        candidates: Any
        real = regime.home == "redkitchen"
        if method.kind == "tv":
            candidates = baselines.REAL_DEPTH_TV if real else baselines.STRONG_TV
        else:
            candidates = baselines.REAL_DEPTH_BM3D if real else baselines.STRONG_BM3D
        dev = [splits.dev.frame(i) for i in range(0, len(splits.dev), max(1, len(splits.dev) // 8))]
        tuned = baselines.tune(dev, candidates)
        scores = [[asdict(candidate), score] for candidate, score in tuned.scores]
        path.write_text(json.dumps({"kind": method.kind, "options": asdict(tuned.best), "scores": scores}))
    run.record({"stage": "fit", "epoch": 0, "seconds": round(time.monotonic() - began, 3)})
    return run


class Trained(NamedTuple):
    """A model with its weights, and the objective that says how it predicts."""

    recipe: Recipe
    model: spen.SPEN
    objective: Objective


def load_run(folder: Path | str, device: str = "cpu") -> tuple[Denoise, spen.SPEN | None]:
    """What a run folder learned: a function from observations to images, and the SPEN if it is one."""
    if not is_pretrained(folder):
        recipe = _recipe_of(Run.open(folder))
        if isinstance(recipe.method, Classical):
            return _classical(recipe.method, Run.open(folder)), None
    trained = load_trained(folder)
    system = isinstance(trained.recipe.method, System)
    return denoiser(trained.model, trained.objective, device), trained.model if system else None


def load_trained(folder: Path | str) -> Trained:
    """The model of a run folder, or of a folder that ``save_pretrained`` wrote."""
    if is_pretrained(folder):
        config = read_config(folder)
        if config["builder"] != "denoising":
            raise ValueError(f"{folder} holds a model of the task {config['builder']!r}, not of denoising")
        settings = config["settings"]
        with complete(folder):
            recipe = find_recipe(settings["recipe"]).restored(settings["options"])
            regime = find_regime(settings["data"])
        return Trained(recipe, spen.SPEN.from_pretrained(folder), build(recipe, regime)[1])
    run = Run.open(folder)
    recipe = _recipe_of(run)
    if isinstance(recipe.method, Classical):
        raise ValueError(f"{folder} is a run of {recipe.name}, which has no network to load")
    with complete(folder):
        regime = find_regime(run.description()["recipe"]["data"])
    model, objective = build(recipe, regime)
    with fitting(folder):
        model.load_state_dict(run.load())
    return Trained(recipe, model, objective)


def _recipe_of(run: Run) -> Recipe:
    with complete(run.folder):
        description = run.description()["recipe"]
        task = description.get("task")
    if task != "denoising":
        raise ValueError(f"{run.folder} is a run of the task {task!r}, not of denoising")
    with complete(run.folder):
        recipe = find_recipe(description["name"])
        options = {k: v for part in ("method", "schedule") for k, v in description[part].items()}
    return recipe.restored({k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})


def denoiser(model: spen.SPEN, objective: Objective, device: str = "cpu") -> Denoise:
    """A trained model as a function; the model goes to the device and learns no more."""
    model.to(device).eval().requires_grad_(False)

    def denoise(x: Observation) -> Tensor:
        with torch.no_grad():
            return objective.predict(model, Observation(*(t.to(device) for t in x))).cpu()

    return denoise


def _classical(method: Classical, run: Run) -> Denoise:
    from spen.tasks.denoising import baselines

    if method.kind == "forest":
        one: Any = baselines.FilterForest.load(run.folder / "forest.safetensors")
    else:
        options = json.loads((run.folder / "chosen.json").read_text())["options"]
        one = (baselines.TotalVariation if method.kind == "tv" else baselines.BM3D)(**options)

    def denoise(x: Observation) -> Tensor:
        images = [one.denoise(i[0].numpy(), m[0].numpy() > 0) for i, m in zip(x.image, x.seen, strict=True)]
        return torch.from_numpy(np.stack(images))[:, None].float()

    return denoise


def evaluate(denoise: Denoise, frames: Frames, *, every: int = 1) -> dict[str, float]:
    """PSNR over all scored and over surface pixels, the error in holes, and seconds per frame."""
    scores: dict[str, list[Tensor]] = {"psnr": [], "surface_psnr": [], "hole_rmse_mm": []}
    seconds = 0.0
    indices = range(0, len(frames), every)
    for index in indices:
        frame = frames.frame(index)
        x = Observation(*(part[None] for part in observation(frame)))
        began = time.perf_counter()
        y = denoise(x)[0]
        seconds += time.perf_counter() - began
        scores["psnr"].append(psnr(y, frame.truth, frame.scored))
        scores["surface_psnr"].append(psnr(y, frame.truth, frame.surface))
        scores["hole_rmse_mm"].append(hole_rmse_mm(y, frame.truth, frame.hole))
    result = {}
    for name, values in scores.items():
        stacked = torch.stack(values)
        result[name] = mean_over_frames(stacked) if not bool(stacked.isnan().all()) else float("nan")
    return {**result, "seconds_per_frame": seconds / len(indices), "frames": len(indices)}
