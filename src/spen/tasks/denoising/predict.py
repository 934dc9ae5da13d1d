"""Denoise image files: any size, 8-bit, 16-bit or float, keeping bit depth and units."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import spen
from spen.tasks.denoising.experiment import Denoise, Trained, build, denoiser, load_run
from spen.tasks.denoising.images import GreyImage, list_images, load_image, save_image
from spen.tasks.denoising.priors import Observation
from spen.tasks.denoising.recipes import System, find_recipe, find_regime
from spen.tasks.shipped import about, check_model
from spen.training import load_weights


def load_model(name: str, device: str = "cpu") -> Denoise:
    """A model shipped with the package, by name, or a run folder."""
    return load_system(name, device)[0]


def load_system(name: str, device: str = "cpu") -> tuple[Denoise, spen.SPEN | None]:
    """The same, with the SPEN behind it where there is one: its trajectory shows how the answer was found."""
    if Path(name).is_dir():
        return load_run(name, device)
    trained = load_shipped(name)
    system = isinstance(trained.recipe.method, System)
    return denoiser(trained.model, trained.objective, device), trained.model if system else None


def load_shipped(name: str) -> Trained:
    """A model shipped with the package."""
    check_model(name)
    config = about(name)
    if config["task"] != "denoising":
        raise ValueError(f"{name} is a model of the task {config['task']!r}, not of denoising")
    recipe = find_recipe(config["recipe"]).with_options(**config["options"])
    model, objective = build(recipe, find_regime(config["data"]))
    with resources.as_file(resources.files("spen") / "weights" / f"{name}.safetensors") as path:
        model.load_state_dict(load_weights(path))
    return Trained(recipe, model, objective)


def denoise_image(denoise: Denoise, image: GreyImage) -> GreyImage:
    """The image denoised, holes filled, in the units and the bit depth it came in."""
    x = Observation(image.tensor()[None], image.valid()[None].float())
    return image.like(denoise(x)[0])


def denoise_files(denoise: Denoise, inputs: list[Path], out: Path, peak: float | None = None) -> Iterator[Path]:
    """Denoise files and the images of folders. ``out`` is a file for one image, else a folder."""
    paths = [p for source in inputs for p in (list_images(source) if source.is_dir() else [source])]
    single = len(paths) == 1 and not inputs[0].is_dir() and bool(out.suffix)
    if not single:
        out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        target = out if single else out / path.name
        if target.resolve() == path.resolve():
            raise ValueError(f"{path} would be overwritten by its own result; give another -o")
        save_image(target, denoise_image(denoise, load_image(path, peak)))
        yield target
