"""Train a recipe on a data set, and score it on a split."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spen.models import SavedModel, find_model
from spen.pretrained import complete, fitting, write_config
from spen.protocols import Objective
from spen.tasks.denoising.build import Denoise, build, origin_of
from spen.tasks.denoising.crops import Crops
from spen.tasks.denoising.data import Frames
from spen.tasks.denoising.datasets import Splits, open_splits
from spen.tasks.denoising.energy import Observed, with_noise
from spen.tasks.denoising.folder import large_enough
from spen.tasks.denoising.losses import planes
from spen.tasks.denoising.methods import Classical, Recipe, Schedule
from spen.tasks.denoising.metrics import clamped_psnr, hole_rmse_mm, mean_over_frames, psnr
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import frame_noise
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import Regime
from spen.tasks.denoising.sources import PSNR, CropSource, FrameSource
from spen.tasks.task import Progress
from spen.training import Run, Stage, fit, joint
from spen.training.processes import devices_and_nodes

_SIZES = ("prior", "kind", "width", "depth", "size", "blocks", "scales")
"""The options that the shapes of the weights depend on."""


def describe_run(recipe: Recipe, regime: Regime, *, quick: bool = False) -> dict[str, Any]:
    """What run.json says was trained."""
    reading = {} if isinstance(regime.saved, str) else {"reading": regime.saved}
    return {**recipe.describe(), "data": regime.name, "quick": quick, **reading}


def train(
    recipe: Recipe,
    regime: Regime,
    out: Path | str,
    *,
    seed: int = 0,
    quick: bool = False,
    splits: Splits | None = None,
    start: str = "",
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    **fit_options: Any,
) -> Run | None:
    """Train into a run folder; None if the ``seconds`` of ``fit_options`` ran out first (call again to resume).

    ``splits`` are the frames of the data set if they have been opened already; ``quick`` opens a few of them.
    ``start`` is a trained model, shipped or in a folder, whose weights training starts from; an energy may start from
    the recipe ``unet``.
    """
    splits = splits or open_splits(regime, quick=quick)
    description = describe_run(recipe, regime, quick=quick) | ({"start": start} if start else {})
    if isinstance(recipe.method, Classical):
        if start:
            raise ValueError(f"{recipe.name} has no weights to start from; leave --start out")
        run = Run.begin(out, description, seed)
        write_config(run.folder, origin_of(recipe, regime))
        _fit_classical(recipe.method, splits, run, regime, seed)
        return run
    schedule, sensed = recipe.schedule, regime.noise is not None and regime.noise.kind == "depth-sensor"
    if schedule.fresh and regime.noise is None:
        raise ValueError(f"fresh is for simulated readings, and those of {regime.name} are real")
    torch.manual_seed(seed)
    model, objective = build(recipe, regime)
    if start:
        saved = find_model(start)
        _check_start(start, saved, recipe)
        with fitting(saved.folder):
            model.load_state_dict(starting_weights(saved.weights(), model.state_dict()))
    on_gpu = accelerator != "cpu" and devices_and_nodes(devices, nodes) == (1, 1) and torch.cuda.is_available()
    kind = recipe.noise_kind(regime)
    crops = Crops(
        large_enough(splits.train, schedule.crop),
        schedule.crop,
        seed=seed,
        flips=schedule.flips or not regime.depth,
        device="cuda" if on_gpu else "cpu",
        noise=None if sensed and not schedule.fresh else regime.noise,
        kind=kind,
    )
    noise_error = 0.5 * getattr(recipe.method, "floor", 0.0)
    run = fit(
        model,
        [stage_of(schedule, objective)],
        CropSource(crops, schedule.batch_size, schedule.epoch_batches, noise_error, schedule.every_pixel),
        FrameSource(splits.dev, 4, kind, schedule.every_pixel),
        PSNR(splits.dev.frame(0).truth.shape[0]),
        out=out,
        seed=seed,
        recipe=description,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        **fit_options,
    )
    return run if run.complete else None


def _check_start(start: str, saved: SavedModel, recipe: Recipe) -> None:
    """Refuse the weights of a model whose sizes differ."""
    if saved.task != recipe.task:
        raise ValueError(
            f"{start} is a model of the task {saved.task}, not of {recipe.task}: it cannot start {recipe.name}"
        )
    with complete(saved.folder):
        there = str(saved.settings["recipe"])
        options = asdict(find_recipe(there).restored(saved.settings["options"]).method)
    own = {key: value for key, value in asdict(recipe.method).items() if key in recipe.option_names()}
    differ = {key: options[key] for key in _SIZES if key in own and key in options and own[key] != options[key]}
    if differ:
        named = ", ".join(f"{key} {value}" for key, value in differ.items())
        same = "".join(f" --set {key}={value}" for key, value in differ.items())
        raise ValueError(
            f"{start} is a model of recipe {there} with other options ({named}) than {recipe.name}: spen train {there} "
            f"--start {shlex.quote(start)}, or {'leave --start out' if 'prior' in differ else f'give{same}'}"
        )


def starting_weights(trained: dict[str, Tensor], first: dict[str, Tensor]) -> dict[str, Tensor]:
    """The trained weights; those of a feed-forward U-Net are the net of an energy, whose other weights are ``first``.

    If R + af is the noise that the net finds, ∇½‖R + af‖² = Jᵀ(R + af) is nearly that noise itself: a denoiser makes
    little of what it has removed. So a step of rate 1/weight is nearly the feed-forward net.
    """
    net, energy = "init.prior.", "energy.parts.prior.energy."
    if not any(name.startswith(energy) for name in first):
        return trained
    found = {energy + name.removeprefix(net): value for name, value in trained.items() if name.startswith(net)}
    return first | found if found else trained


def stage_of(schedule: Schedule, objective: Objective) -> Stage:
    """One stage that trains everything."""
    return joint(
        objective,
        epochs=schedule.epochs,
        learning_rate=schedule.learning_rate,
        warmup=schedule.warmup,
        decay_to=schedule.decay_to,
        clip=schedule.clip,
        epsilon=schedule.epsilon,
        average=schedule.average,
        seconds=schedule.seconds or None,
    )


def _fit_classical(method: Classical, splits: Splits, run: Run, regime: Regime, seed: int) -> None:
    """Choose the parameter of a classical filter on the development set, or grow the forest."""
    from spen.tasks.denoising.baselines import classical
    from spen.tasks.denoising.baselines.forest import FilterForest

    began = time.monotonic()
    chosen, forest = run.folder / "chosen.json", run.folder / "forest.safetensors"
    if method.kind == "forest":
        if not forest.exists():
            FilterForest.fit([splits.train.frame(i) for i in range(len(splits.train))], seed=seed).save(forest)
    elif not chosen.exists():
        candidates = classical.CANDIDATES[method.kind, regime.noise is None]
        dev = [splits.dev.frame(i) for i in range(0, len(splits.dev), max(1, len(splits.dev) // 8))]
        best, scores = classical.tune(dev, candidates)
        tried = [[asdict(candidate), score] for candidate, score in zip(candidates, scores, strict=True)]
        chosen.write_text(json.dumps({"kind": method.kind, "options": asdict(best), "scores": tried}))
    run.record({"stage": "fit", "epoch": 0, "seconds": round(time.monotonic() - began, 3)})


def evaluate(
    denoise: Denoise,
    frames: Frames,
    *,
    every: int = 1,
    progress: Progress | None = None,
    kind: Kind | None = None,
    noise: float | None = None,
) -> dict[str, float]:
    """PSNR over scored pixels, over surface pixels, of the input, and of the authors' code; error in holes; time.

    A noise-conditioned model gets ``noise``, in units of the image, or an estimate for noise of this ``kind``.
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
            x = with_noise(x, frame_noise(frame, kind) if noise is None else torch.tensor(noise))
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
