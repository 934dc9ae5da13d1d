"""A trained denoiser: scores on a split, files in and out, export, and a batch to time strategies on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

import spen
from spen.models import SavedModel
from spen.pretrained import complete, fitting
from spen.tasks.denoising.build import Denoise, build, denoiser
from spen.tasks.denoising.data import Frames
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import list_images
from spen.tasks.denoising.methods import Classical, Recipe, System
from spen.tasks.denoising.predict import FileDenoiser, averaged, tiled
from spen.tasks.denoising.recipes import default_data, find_recipe
from spen.tasks.denoising.regimes import Holes, Regime, find_regime
from spen.tasks.task import Opened, Progress, Scores

if TYPE_CHECKING:
    from spen.export import Exportable


class Denoiser(Opened):
    """``denoise`` maps observations to images; ``model`` is the SPEN behind it, None if it descends no energy."""

    def __init__(
        self, name: str, recipe: Recipe, regime: Regime, denoise: Denoise, network: spen.SPEN | None, *, quick: bool
    ) -> None:
        self.name, self.recipe, self.regime, self.denoise, self.quick = name, recipe, regime, denoise, quick
        self.network = network
        self.kind = recipe.noise_kind(regime)
        self.model = network if isinstance(recipe.method, System) else None

    @classmethod
    def open(cls, saved: SavedModel, device: str = "cpu") -> Denoiser:
        """The model of a folder."""
        with complete(saved.folder):
            recipe = find_recipe(saved.settings["recipe"]).restored(saved.settings["options"])
            regime = find_regime(saved.settings["data"])
        quick = bool(saved.run.get("recipe", {}).get("quick", False))
        if isinstance(recipe.method, Classical):
            return cls(saved.name, recipe, regime, _classical(recipe.method, saved.folder), None, quick=quick)
        network, objective = build(recipe, regime)
        with fitting(saved.folder):
            network.load_state_dict(saved.weights())
        return cls(saved.name, recipe, regime, tiled(denoiser(network, objective, device)), network, quick=quick)

    @classmethod
    def fresh(cls, name: str) -> Denoiser:
        """A recipe's model with fresh weights."""
        regime = find_regime(default_data(name))
        recipe = find_recipe(name, regime)
        if not isinstance(recipe.method, System):
            raise ValueError(f"{name} has no descent to differentiate; name a recipe with an energy, dp-3 say")
        network, objective = build(recipe, regime)
        return cls(name, recipe, regime, denoiser(network, objective), network, quick=False)

    def evaluate(
        self,
        split: str,
        data: str = "",
        *,
        progress: Progress | None = None,
        every: int = 1,
        sigma: float | None = None,
        strength: float | None = None,
        turns: int = 1,
        **reading: Any,
    ) -> Scores:
        from spen.tasks.denoising.train import evaluate

        noise, denoise = self.noise_level(sigma, strength), averaged(self.denoise, turns)
        regime, frames, split = self._frames(split, data, reading)
        result = evaluate(denoise, frames, every=every, progress=progress, kind=self.kind, noise=noise)
        lines = [
            f"{self.name} on {int(result['frames'])} {split} {'frames' if regime.depth else 'images'} of {regime.name}",
            f"  PSNR          {result['psnr']:8.2f} dB",
            f"  of the input  {result['input_psnr']:8.2f} dB",
        ]
        if regime.depth:
            lines += [
                f"  on surfaces   {result['surface_psnr']:8.2f} dB",
                f"  in holes      {result['hole_rmse_mm']:8.0f} mm RMSE",
            ]
        lines.append(f"  a frame takes {result['seconds_per_frame']:8.3f} s")
        return Scores({"data": regime.name, **result}, tuple(lines))

    def _frames(self, split: str, data: str, reading: dict[str, Any]) -> tuple[Regime, Frames, str]:
        """The frames of a split; all frames of another folder that does not define splits."""
        from spen.tasks.denoising.datasets import open_splits
        from spen.tasks.denoising.folder import open_parts

        regime = find_regime(data or self.regime.saved, **reading)
        if regime.folder and self.regime.folder:
            regime = self._as_trained(regime, reading)
        if not regime.folder or regime.folder == self.regime.folder:
            return regime, getattr(open_splits(regime, quick=self.quick), split), split
        parts, chosen = open_parts(regime)
        return (regime, parts[split], split) if chosen else (regime, parts["all"], "all")

    def _as_trained(self, regime: Regime, reading: dict[str, Any]) -> Regime:
        """A folder read with the options of the training folder, unless others are given; with its own split seed."""
        as_before = {key: getattr(self.regime, key) for key in ("peak", "holes") if key not in reading}
        if regime.folder == self.regime.folder:
            seed = self.regime.split_seed
            if reading.get("split_seed", seed) != seed:
                raise ValueError(f"{self.name} was trained with --split-seed {seed}; its test images are those")
            as_before["split_seed"] = seed
        return replace(regime, **as_before)

    def noise_level(self, sigma: float | None, strength: float | None) -> float | None:
        """--sigma or --strength in units of the image."""
        from spen.tasks.denoising.simulate import SENSOR_UNIT

        if sigma is None and strength is None:
            return None
        if self.kind is None:
            flag = "--sigma" if strength is None else "--strength"
            raise ValueError(f"{self.name} does not read a noise level, so {flag} has no effect; leave it out")
        if (strength is None) == (self.kind == "depth-sensor"):
            wanted = "--strength, a multiple of a Kinect's" if self.kind == "depth-sensor" else "--sigma, out of 255"
            raise ValueError(f"{self.name} reads its noise level from {wanted}")
        if min(x for x in (sigma, strength) if x is not None) < 0:
            raise ValueError("the noise level is 0 or more")
        return SENSOR_UNIT * strength if strength is not None else (sigma or 0.0) / 255

    def predict(
        self,
        inputs: Sequence[Path],
        out: Path | None,
        *,
        progress: Progress | None = None,
        peak: float | None = None,
        holes: Holes | None = None,
        sigma: float | None = None,
        strength: float | None = None,
        turns: int = 1,
        batch: int = 1,
        **options: Any,
    ) -> Iterator[Path]:
        noise, denoise = self.noise_level(sigma, strength), averaged(self.denoise, turns)
        peak, holes = self.regime.peak if peak is None else peak, holes or self.regime.holes
        depth = self.regime.depth
        if holes == "auto" and not depth and self.regime.noise is not None:
            holes = "none"  # it was trained on whole images, in which 0 is black
        files = FileDenoiser(denoise, self.kind, noise, peak, holes, batch, depth=depth, name=self.name)
        if out is None:
            if len(inputs) != 1 or inputs[0].is_dir():
                raise ValueError("images need --out, a file for one or a folder for several")
            return files.to_stdout(inputs[0])
        total = sum(len(list_images(path)) if path.is_dir() else 1 for path in inputs)
        written = files.files(list(inputs), out)
        return written if progress is None else progress(written, total, "images")

    def exportable(self) -> Exportable:
        from spen.tasks.denoising.exporting import exportable

        if self.network is None:
            raise ValueError(f"{self.name} is a model of {self.recipe.name}, which has no network to export")
        return exportable(self.network, self.recipe)

    def batch(self, size: int | None = None, *, image_size: tuple[int, int] | None = None, **options: Any) -> Any:
        if self.model is None:
            raise ValueError(f"{self.name} has no descent to differentiate; name a model with an energy, dp-3 say")
        height, width = image_size or self.recipe.schedule.crop
        coarse = torch.rand(size or self.recipe.schedule.batch_size, 1, max(2, height // 12), max(2, width // 12))
        truth = F.interpolate(coarse, (height, width), mode="bilinear")
        image = truth + 0.07 / self.regime.scale * torch.randn_like(truth)
        return Observation(image, torch.ones_like(image))


def _classical(method: Classical, folder: Path) -> Denoise:
    from spen.tasks.denoising.baselines.classical import BM3D, TotalVariation, batched
    from spen.tasks.denoising.baselines.forest import FilterForest

    if method.kind == "forest":
        return batched(FilterForest.load(folder / "forest.safetensors"))
    options = json.loads((folder / "chosen.json").read_text())["options"]
    return batched((TotalVariation if method.kind == "tv" else BM3D)(**options))
