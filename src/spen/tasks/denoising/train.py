"""Train a recipe on a data set, and score it on a split."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spen.pretrained import write_config
from spen.protocols import Objective
from spen.tasks.denoising import datasets
from spen.tasks.denoising.build import Denoise, DenoiserPretraining, build, kind_of, origin_of
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frames
from spen.tasks.denoising.datasets import SPLIT_NAMES, Splits, Subset
from spen.tasks.denoising.energy import NoisyObservation, Observed
from spen.tasks.denoising.folder import Sized, large_enough
from spen.tasks.denoising.frame_cache import KeptFrames
from spen.tasks.denoising.losses import masked_squared_error, planes
from spen.tasks.denoising.metrics import PSNR, clamped_psnr, hole_rmse_mm, mean_over_frames, psnr
from spen.tasks.denoising.noise import Kind, Noise
from spen.tasks.denoising.noise_estimate import frame_noise
from spen.tasks.denoising.recipes import Classical, Recipe, Regime, System
from spen.tasks.denoising.sources import CropSource, FrameSource
from spen.tasks.task import Progress
from spen.training import Run, Stage, fit, joint
from spen.training.processes import sizes


def open_splits(regime: Regime, *, quick: bool = False, cache: Path | str | None = None) -> Splits:
    """The frames of a data set; ``quick`` takes a few of them, for a demonstration. ``cache`` may hold them ready."""
    kept = [] if cache is None else [kept_path(cache, name, quick) for name in SPLIT_NAMES]
    if kept and all(path.exists() for path in kept):
        return Splits(*map(KeptFrames, kept))
    splits: Splits = getattr(datasets, regime.opens)(regime, quick)
    return splits


def kept_path(cache: Path | str, split: str, quick: bool) -> Path:
    """Where the frames of a split are kept for many processes."""
    return Path(cache) / f"{split}{'-quick' if quick else ''}.safetensors"


def describe_run(recipe: Recipe, regime: Regime, *, quick: bool = False) -> dict[str, Any]:
    """What a run folder says was trained in it."""
    reading = {} if isinstance(regime.saved, str) else {"reading": regime.saved}
    return {**recipe.describe(), "data": regime.name, "quick": quick, **reading}


def train(
    recipe: Recipe,
    regime: Regime,
    out: Path | str,
    *,
    seed: int = 0,
    quick: bool = False,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    progress: bool | None = None,
    seconds: float | None = None,
    cache: Path | str | None = None,
) -> Run | None:
    """Train into a run folder; None if ``seconds`` ran out before the end (call again to go on)."""
    splits = open_splits(regime, quick=quick, cache=cache)
    description = describe_run(recipe, regime, quick=quick)
    if isinstance(recipe.method, Classical):
        run = Run.begin(out, description, seed)
        write_config(run.folder, origin_of(recipe, regime))
        return _fit_classical(recipe.method, splits, run, regime, seed)
    torch.manual_seed(seed)
    model, objective = build(recipe, regime)
    schedule = recipe.schedule
    on_gpu = accelerator != "cpu" and sizes(devices, nodes) == (1, 1) and torch.cuda.is_available()
    kind = kind_of(recipe, regime)
    crops = Crops(
        _large_enough(splits.train, schedule.crop),
        schedule.crop,
        seed=seed,
        flips=regime.flips or schedule.flips,
        device="cuda" if on_gpu else "cpu",
        noise=_fresh_noise(recipe, regime),
        kind=kind,
    )
    wrong = 0.5 * getattr(recipe.method, "floor", 0.0)
    source = CropSource(crops, schedule.batch_size, schedule.epoch_batches, wrong, schedule.every_pixel)
    run = fit(
        model,
        stages_of(recipe, objective),
        source,
        FrameSource(splits.dev, 4, kind, schedule.every_pixel),
        PSNR(splits.dev.frame(0).truth.shape[0]),
        out=out,
        seed=seed,
        recipe=description,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        progress=progress,
        seconds=seconds,
    )
    return run if run.complete else None


def _fresh_noise(recipe: Recipe, regime: Regime) -> Noise | None:
    """What every batch gets of its own: the noise of images always, that of a sensor if the schedule says so."""
    if recipe.schedule.fresh and regime.real:
        raise ValueError(f"fresh is for simulated readings, and those of {regime.name} are real")
    sensed = regime.noise is not None and regime.noise.kind == "depth-sensor"
    return None if sensed and not recipe.schedule.fresh else regime.noise


def _large_enough(frames: Frames, crop: tuple[int, int]) -> Frames:
    return Subset(frames, large_enough(frames, crop)) if isinstance(frames, Sized) else frames


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
    from spen.tasks.denoising.baselines import classical
    from spen.tasks.denoising.baselines.forest import FilterForest

    began = time.monotonic()
    path = run.folder / "chosen.json"
    if method.kind == "forest":
        target = run.folder / "forest.safetensors"
        if not target.exists():
            frames = [splits.train.frame(i) for i in range(len(splits.train))]
            FilterForest.fit(frames, seed=seed).save(target)
    elif not path.exists():
        candidates: Any
        real = regime.real
        if method.kind == "tv":
            candidates = classical.REAL_DEPTH_TV if real else classical.STRONG_TV
        else:
            candidates = classical.REAL_DEPTH_BM3D if real else classical.STRONG_BM3D
        dev = [splits.dev.frame(i) for i in range(0, len(splits.dev), max(1, len(splits.dev) // 8))]
        tuned = classical.tune(dev, candidates)
        scores = [[asdict(candidate), score] for candidate, score in tuned.scores]
        path.write_text(json.dumps({"kind": method.kind, "options": asdict(tuned.best), "scores": scores}))
    run.record({"stage": "fit", "epoch": 0, "seconds": round(time.monotonic() - began, 3)})
    return run


def evaluate(
    denoise: Denoise,
    frames: Frames,
    *,
    every: int = 1,
    progress: Progress | None = None,
    kind: Kind | None = None,
    noise: float | None = None,
) -> dict[str, float]:
    """PSNR over all scored and over surface pixels, of the input, as the authors have it, error in holes, and time.

    A model that is told the noise gets ``noise``, in units of the image, or an estimate of noise of this ``kind``.
    """
    names = ("psnr", "surface_psnr", "input_psnr", "hole_rmse_mm", "clamped_psnr")
    scores: dict[str, list[Tensor]] = {name: [] for name in names}
    seconds = 0.0
    indices = range(0, len(frames), every)
    for index in indices if progress is None else progress(indices, len(indices), "frames"):
        frame = frames.frame(index)
        x: Observed = planes(frame)
        began = time.perf_counter()
        if kind is not None:
            told = frame_noise(frame, kind) if noise is None else torch.tensor(noise)
            x = NoisyObservation(x.image, x.seen, told.expand(len(x.image), 1, 1, 1))
        y = denoise(x)[:, 0]
        seconds += time.perf_counter() - began
        scores["psnr"].append(psnr(y, frame.truth, frame.scored))
        scores["surface_psnr"].append(psnr(y, frame.truth, frame.surface))
        scores["input_psnr"].append(psnr(frame.noisy, frame.truth, frame.scored))
        scores["hole_rmse_mm"].append(hole_rmse_mm(y, frame.truth, frame.hole))
        scores["clamped_psnr"].append(clamped_psnr(y, frame.truth))
    result = {}
    for name, values in scores.items():
        stacked = torch.stack(values)
        result[name] = mean_over_frames(stacked) if not bool(stacked.isnan().all()) else float("nan")
    return {**result, "seconds_per_frame": seconds / len(indices), "frames": len(indices)}
