"""Data sets as values: those that have a name, and folders of images. Imports nothing heavy: `spen list` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spen.tasks.denoising.noise import Kind, Noise, parse_noise
from spen.tasks.denoising.recipe_types import Holes

__all__ = ["REGIMES", "Regime", "find_regime"]

STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_ROOMS = 15.47, 12.24
"""Multiples of a Kinect's noise at which the mean PSNR of the reading is 30 dB, on the clean maps of RedKitchen's
development frames and on 32 development frames of the rooms: `python docs/scripts/sensor_strength.py`."""

GREY_SIGMA = 25.0
"""Noise of the grey images, in units of 1/255."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A data set: the frames it opens, the noise that training adds to them, and a scale s at which it is near 0.07.

    A folder of images is one, too: ``folder`` is its path; ``peak``, ``holes`` and ``split_seed`` say how to read it.
    """

    name: str
    about: str
    scale: float
    opens: str  # a function of `datasets`
    needs: str | None  # the folder of data it reads; None: built in
    like: str = ""  # the data set whose choices it takes over
    noise: Noise | None = None  # that is simulated; None: noise is real
    flips: bool = False  # whether crops are always turned over
    many: bool = True  # whether frames take long to make, so that processes share them
    obtain: str = ""
    depth: bool = True  # whether its images are depth maps
    folder: str = ""
    peak: float | None = None
    holes: Holes = "auto"
    split_seed: int = 0

    @property
    def saved(self) -> str | dict[str, Any]:
        """What a model's config.json says of it; ``find_regime`` reads it."""
        if REGIMES.get(self.name) == self:
            return self.name
        noise = None if self.noise is None else str(self.noise)
        reading = {"folder": self.folder, "peak": self.peak, "holes": self.holes, "split_seed": self.split_seed}
        return {"name": self.name, "noise": noise, "depth": self.depth, **(reading if self.folder else {})}

    @property
    def kind(self) -> Kind:
        """Of its noise, for an estimate of the level; what is not known is taken for white."""
        return "gaussian" if self.noise is None else self.noise.kind

    @property
    def home(self) -> str:
        """The data set that choices are made for."""
        return self.like or self.name

    @property
    def real(self) -> bool:
        """Whether its readings are those of a sensor, which cannot read again."""
        return self.noise is None


_KITCHEN: dict[str, Any] = {
    "needs": "denoising/redkitchen",
    "obtain": "spen data fetch 7scenes, then spen data make 7scenes",
}
REGIMES = {
    r.name: r
    for r in (
        Regime(
            name="rooms",
            about="built-in rooms, simulated sensor at 12 times the noise of a Kinect (30 dB)",
            scale=2.5,
            opens="open_rooms",
            needs=None,
            noise=Noise("depth-sensor", STRENGTH_30DB_ROOMS, STRENGTH_30DB_ROOMS),
        ),
        Regime(
            name="simulated",
            about="RedKitchen's geometry, simulated sensor at 15 times the noise of a Kinect (30 dB)",
            scale=2.5,
            opens="open_simulated",
            noise=Noise("depth-sensor", STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_REDKITCHEN),
            **_KITCHEN,
        ),
        Regime(
            name="redkitchen", about="RedKitchen as the sensor saw it", scale=25.0, opens="open_redkitchen", **_KITCHEN
        ),
        Regime(
            name="redkitchen-half",
            about="for choosing options: half of RedKitchen's training frames, scored on development frames",
            scale=25.0,
            opens="open_half",
            like="redkitchen",
            **_KITCHEN,
        ),
        Regime(
            name="gaussian",
            about="grey images, Gaussian noise of 25/255",
            scale=1.0,
            opens="open_grey",
            needs="denoising/train400",
            noise=Noise("gaussian", GREY_SIGMA, GREY_SIGMA),
            depth=False,
            flips=True,
            many=False,  # decoded in a moment, and of mixed sizes
        ),
        Regime(
            name="rooms-any",
            about="built-in rooms, simulated sensor at 0.5 to 15 times the noise of a Kinect",
            scale=2.5,
            opens="open_rooms",
            needs=None,
            noise=Noise("depth-sensor", 0.5, 15.0),
        ),
        Regime(
            name="dead-leaves",
            about="procedural colour images (dead leaves with textures), Gaussian noise of 0 to 55/255",
            scale=1.0,
            opens="open_leaves",
            needs=None,
            noise=Noise("gaussian", 0.0, 55.0),
            depth=False,
            flips=True,
            many=False,
        ),
    )
}


def find_regime(data: str | Mapping[str, Any], noise: Noise | None = None, **reading: Any) -> Regime:
    """A data set by its name, by the path of a folder, or from what a model's config.json says of it."""
    if not isinstance(data, str):
        known = dict(data)
        spelled, depth = known.pop("noise", None), known.pop("depth", False)
        given = noise or (parse_noise(spelled) if spelled else None)
        base = REGIMES.get(known["name"]) or folder_regime(known.pop("folder"), depth=depth)
        return replace(base, noise=given, **{**known, **reading})
    if data in REGIMES:
        if reading:
            raise ValueError(f"--{next(iter(reading)).replace('_', '-')} is for a folder of images, and {data} is none")
        return _with_noise(REGIMES[data], noise)
    if not Path(data).is_dir():
        names = ", ".join(REGIMES)
        raise ValueError(f"there is no denoising data set {data!r}; there are {names}; or give a folder of images")
    depth = holds_depth(Path(data)) if noise is None else noise.kind == "depth-sensor"
    return replace(folder_regime(data, depth=depth), noise=noise, **reading)


def holds_depth(folder: Path) -> bool:
    """Whether the first image of a folder is grey of 16 bits, as depth cameras write."""
    from PIL import Image

    for path in sorted(folder.rglob("*")):
        try:
            if path.suffix == ".npy":
                import numpy as np

                values = np.load(path, mmap_mode="r", allow_pickle=False)
                return values.dtype == np.uint16 and values.ndim == 2
            with Image.open(path) as image:
                return image.mode.startswith("I;16")
        except (OSError, ValueError):  # no image
            continue
    return False


def folder_regime(path: str, *, depth: bool) -> Regime:
    """A folder of images as a data set: like the rooms if they are depth maps, like photographs if not."""
    folder = Path(path).resolve()
    return Regime(
        name=folder.name,
        about=f"images of {folder}",
        scale=2.5 if depth else 1.0,
        opens="open_folder",
        needs=None,
        like="rooms-any" if depth else "dead-leaves",
        depth=depth,
        folder=str(folder),
        flips=not depth,
        many=False,
    )


def _with_noise(regime: Regime, noise: Noise | None) -> Regime:
    """The data set with other noise, where its noise is simulated."""
    if noise is None:
        return regime
    if regime.noise is None or (noise.kind == "depth-sensor") != regime.depth:
        own = "that of a real sensor" if regime.noise is None else regime.noise.kind
        raise ValueError(f"--noise {noise} does not fit {regime.name}, whose noise is {own}; choose another data set")
    return replace(regime, noise=noise)
