"""A trained denoiser: scores on a split, files in and out, export, and a batch to time strategies on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import spen
from spen.models import SavedModel
from spen.pretrained import complete, fitting
from spen.tasks.denoising.build import Denoise, build, denoiser
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.images import list_images
from spen.tasks.denoising.predict import denoise_files
from spen.tasks.denoising.recipe_types import Holes
from spen.tasks.denoising.recipes import Classical, Recipe, Regime, System, find_recipe, find_regime
from spen.tasks.task import Opened, Progress, Scores

if TYPE_CHECKING:
    from spen.export import Exportable

__all__ = ["Denoiser"]


class Denoiser(Opened):
    """``denoise`` maps observations to images; ``model`` is the SPEN behind it, None if it descends no energy."""

    def __init__(
        self, name: str, recipe: Recipe, regime: Regime, denoise: Denoise, network: spen.SPEN | None, *, quick: bool
    ) -> None:
        self.name, self.recipe, self.regime, self.denoise, self.quick = name, recipe, regime, denoise, quick
        self.network = network
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
        return cls(saved.name, recipe, regime, denoiser(network, objective, device), network, quick=quick)

    @classmethod
    def fresh(cls, name: str) -> Denoiser:
        """A recipe's model with fresh weights."""
        recipe, regime = find_recipe(name), find_regime("rooms")
        if not isinstance(recipe.method, System):
            raise ValueError(f"{name} has no descent to differentiate; name a recipe with an energy, dp-3 say")
        network, objective = build(recipe, regime)
        return cls(name, recipe, regime, denoiser(network, objective), network, quick=False)

    def evaluate(
        self, split: str, data: str = "", *, progress: Progress | None = None, every: int = 1, **options: Any
    ) -> Scores:
        from spen.tasks.denoising.train import evaluate, open_splits

        regime = find_regime(data) if data else self.regime
        frames = getattr(open_splits(regime, quick=self.quick), split)
        result = evaluate(self.denoise, frames, every=every, progress=progress)
        lines = (
            f"{self.name} on {int(result['frames'])} {split} frames of {regime.name}",
            f"  PSNR          {result['psnr']:8.2f} dB",
            f"  on surfaces   {result['surface_psnr']:8.2f} dB",
            f"  in holes      {result['hole_rmse_mm']:8.0f} mm RMSE",
            f"  a frame takes {result['seconds_per_frame']:8.3f} s",
        )
        return Scores({"data": regime.name, **result}, lines)

    def predict(
        self,
        inputs: Sequence[Path],
        out: Path | None,
        *,
        progress: Progress | None = None,
        peak: float | None = None,
        holes: Holes = "auto",
        **options: Any,
    ) -> Iterator[Path]:
        if out is None:
            raise ValueError("images need --out, a file or a folder")
        total = sum(len(list_images(path)) if path.is_dir() else 1 for path in inputs)
        written = denoise_files(self.denoise, list(inputs), out, peak, holes)
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
    from spen.tasks.denoising.baselines.classical import BM3D, TotalVariation
    from spen.tasks.denoising.baselines.forest import FilterForest

    if method.kind == "forest":
        one: Any = FilterForest.load(folder / "forest.safetensors")
    else:
        options = json.loads((folder / "chosen.json").read_text())["options"]
        one = (TotalVariation if method.kind == "tv" else BM3D)(**options)

    def denoise(x: Observation) -> Tensor:
        images = [one.denoise(i[0].numpy(), m[0].numpy() > 0) for i, m in zip(x.image, x.seen, strict=True)]
        return torch.from_numpy(np.stack(images))[:, None].float()

    return denoise
