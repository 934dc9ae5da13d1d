"""Denoising of depth and grey images: Table 1 of the paper. Imports no torch until something is trained or opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spen.tasks.denoising.noise import parse_noise
from spen.tasks.denoising.recipes import RECIPES, default_data, find_recipe
from spen.tasks.denoising.regimes import REGIMES, Holes, find_regime
from spen.tasks.options import image_size
from spen.tasks.task import Dataset, Listed, Opened, Option, Reproduced, ReproduceOrder, Task, Trained, TrainOrder

if TYPE_CHECKING:
    from spen.model import SPEN
    from spen.models import SavedModel

_SEVEN = Dataset(
    "7scenes",
    "depth frames of seven rooms, Microsoft Research",
    folder="denoising/redkitchen",
    fetch="spen.tasks.denoising.sevenscenes.download:fetch_scene",
    make="spen.tasks.denoising.sevenscenes.prepare:make",
    fetch_options=(Option("scene", str, "chess, fire, heads, office, pumpkin, redkitchen (if not given) or stairs."),),
    make_options=(Option("device", str, "Device that fuses the frames: cpu (if not given) or cuda."),),
    trains=False,
)


_PEAK = Option(
    "peak",
    float,
    "The value that counts as 1: 255 for 8 bits; 4000 for 16 bits, depth in mm; 1 for floats; 4 for metres.",
)
_HOLES = Option("holes", Holes, "Whether zeros are missing pixels: zero, none, or auto (not in 8-bit images).")
_NOISE = Option(
    "noise", parse_noise, "Noise to add to clean images: gaussian:25, gaussian:0-55, poisson:30, depth-sensor:0.5-15."
)
_SPLIT_SEED = Option("split_seed", int, "Seed of the random split of a folder that has no splits; 0 if not given.")
_NOISE_LEVEL = (
    Option("sigma", float, "Noise level out of 255, for a model that reads it; estimated if not given."),
    Option("strength", float, "Noise level as a multiple of a Kinect's, for a model that reads it; else estimated."),
)
_TURNS = Option(
    "turns", int, "Average the answers for 2, 4 or 8 mirrored and turned copies: better, and slower; 1 if not given."
)


class Denoising(Task):
    """Images in, images out."""

    name = "denoising"
    unit = "the paper's PSNR"
    table = "table1"
    tab = "spen.tasks.denoising.tab:DenoisingTab"
    options = {
        "train": (
            _NOISE,
            _PEAK,
            _HOLES,
            _SPLIT_SEED,
            Option(
                "start",
                str,
                "A trained model to start from: photo, depth, or a folder. A U-Net's energy may start from unet.",
            ),
        ),
        "evaluate": (
            Option("every", int, "Score every n-th example only.", least=1),
            _NOISE,
            _PEAK,
            _HOLES,
            _SPLIT_SEED,
            *_NOISE_LEVEL,
            _TURNS,
        ),
        "predict": (
            _PEAK,
            _HOLES,
            *_NOISE_LEVEL,
            _TURNS,
            Option("batch", int, "Batch size for images of one size; 1 if not given.", least=1),
        ),
        "bench": (
            Option("image_size", image_size, "Height and width, as 96x128; the recipe's if not given.", "--size"),
        ),
    }
    examples = {
        "train": (
            "spen train dp-3",
            "spen train dp-3 --set batches=500 --set steps=5 --out runs/five",
            "spen train denoise --data photos --noise gaussian:0-55 --set batches=500",
        ),
        "evaluate": ("spen evaluate dp-3 --every 10", "spen evaluate runs/rooms/dp-3/seed-0 --split dev --json"),
        "predict": (
            "spen predict dp-3 noisy.png -o clean.png",
            "spen predict dp-3 depth.png -o filled.png --peak 4000",
            "spen predict runs/rooms/dp-3/seed-0 frames/ -o clean/",
        ),
        "reproduce": (
            "spen reproduce table1 --quick",
            "spen reproduce table1 --data simulated --rows dp-3,foe-3 --seeds 1",
        ),
        "bench": ("spen bench dp-3 --batch 1 --size 24x32",),
        "export": ("spen export dp-3 dp-3.onnx", "spen export runs/rooms/dp-3/seed-0 denoiser --json"),
        "fetch": ("spen data fetch 7scenes --scene redkitchen",),
        "make": ("spen data make 7scenes --source redkitchen --out prepared",),
    }

    recipes = {r.name: Listed(r.name, r.about, r.paper) for r in RECIPES.values()}
    datasets = {r.name: Dataset(r.name, r.about, r.needs, r.obtain or Dataset.obtain) for r in REGIMES.values()}
    datasets |= {_SEVEN.name: _SEVEN}

    def has_recipe(self, name: str) -> bool:
        return name.partition(":")[0] in RECIPES

    def default_data(self, recipe: str) -> str:
        return default_data(recipe)

    def check(self, recipe: str, data: str, settings: Mapping[str, str]) -> None:
        find_recipe(recipe, find_regime(data)).with_options(**settings)

    def train(self, order: TrainOrder) -> Trained | None:
        from spen.tasks.denoising.train import train

        options = dict(order.options)
        start = options.pop("start", "")
        regime = find_regime(order.data, **options)
        run = train(
            find_recipe(order.recipe, regime).with_options(**order.settings),
            regime,
            order.out,
            start=start,
            **order.fit_options,
        )
        if run is None:
            return None
        return Trained("PSNR (dB)", max((e["dev"] for e in run.metrics() if "dev" in e), default=None))

    def can_open(self, folder: Path) -> bool:
        classical = (folder / name for name in ("chosen.json", "forest.safetensors"))
        return super().can_open(folder) or any(path.is_file() for path in classical)

    def open(self, saved: SavedModel, device: str = "cpu") -> Opened:
        from spen.tasks.denoising.opened import Denoiser

        return Denoiser.open(saved, device)

    def fresh(self, recipe: str) -> Opened:
        from spen.tasks.denoising.opened import Denoiser

        return Denoiser.fresh(recipe)

    def rebuild(self, **settings: Any) -> SPEN:
        from spen.tasks.denoising.build import rebuild

        return rebuild(**settings)

    def reproduce(self, order: ReproduceOrder) -> Reproduced:
        from spen.tasks.denoising.reproduce import reproduce

        return reproduce(order)


TASK = Denoising()
