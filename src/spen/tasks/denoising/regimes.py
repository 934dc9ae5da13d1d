"""Data sets as values: those that have a name, and folders of images. Imports nothing heavy: `spen list` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spen.tasks.denoising.noise import Kind, Noise, parse_noise

Holes = Literal["auto", "zero", "none"]
"""Which pixels hold no reading: zeros (``"auto"``: not of 8 bits, where 0 is black), or only what is not finite."""

STRENGTH_30DB_REDKITCHEN, STRENGTH_30DB_ROOMS = 15.47, 12.24
"""Multiples of a Kinect's noise at which the mean PSNR of the reading is 30 dB, on the clean maps of RedKitchen's
development frames and on 32 development frames of the rooms: `python docs/scripts/sensor_strength.py`."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A data set: the frames it opens, the noise that training adds to them, and a scale s at which it is near 0.07.

    A folder of images is one, too: ``folder`` is its path; ``peak``, ``holes`` and ``split_seed`` say how to read it.
    """

    name: str
    about: str
    scale: float
    opens: str  # a function of `datasets`
    needs: str | None = None  # the folder of data it reads; None: built in
    like: str = ""  # the data set whose recipe options it takes
    noise: Noise | None = None  # that is simulated; None: noise is real
    obtain: str = ""
    depth: bool = True  # whether its images are depth maps
    folder: str = ""
    peak: float | None = None
    holes: Holes = "auto"
    split_seed: int = 0

    @property
    def saved(self) -> str | dict[str, Any]:
        """The data set in a model's config.json, which ``find_regime`` reads."""
        if REGIMES.get(self.name) == self:
            return self.name
        noise = None if self.noise is None else str(self.noise)
        reading = {"folder": self.folder, "peak": self.peak, "holes": self.holes, "split_seed": self.split_seed}
        return {"name": self.name, "noise": noise, "depth": self.depth, **(reading if self.folder else {})}

    @property
    def kind(self) -> Kind:
        """Of its noise, for an estimate of the level; unknown noise counts as white."""
        return "gaussian" if self.noise is None else self.noise.kind

    @property
    def home(self) -> str:
        """The data set that recipe options are chosen for."""
        return self.like or self.name


_KITCHEN: dict[str, Any] = {
    "needs": "denoising/redkitchen",
    "obtain": "spen data fetch 7scenes, then spen data make 7scenes",
}
_ALL = (
    Regime(
        name="rooms",
        about="built-in rooms, simulated sensor at 12 times the noise of a Kinect (30 dB)",
        scale=2.5,
        opens="open_rooms",
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
    Regime(name="redkitchen", about="RedKitchen as the sensor saw it", scale=25.0, opens="open_redkitchen", **_KITCHEN),
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
        noise=Noise("gaussian", 25.0, 25.0),
        depth=False,
    ),
    Regime(
        name="rooms-any",
        about="built-in rooms, simulated sensors at 0.5 to 15 times the noise of a Kinect, half of it correlated",
        scale=2.5,
        opens="open_rooms",
        noise=Noise("depth-sensor", 0.5, 15.0, correlated=0.5),
    ),
    Regime(
        name="dead-leaves",
        about="procedural colour images (dead leaves with textures), Gaussian noise of 0 to 55/255",
        scale=1.0,
        opens="open_leaves",
        noise=Noise("gaussian", 0.0, 55.0),
        depth=False,
    ),
)
REGIMES = {regime.name: regime for regime in _ALL}


def find_regime(data: str | Mapping[str, Any], noise: Noise | None = None, **reading: Any) -> Regime:
    """A data set by its name, by the path of a folder, or from a model's config.json.

    ``noise`` replaces simulated noise; ``reading`` are the ``peak``, ``holes`` and ``split_seed`` of a folder.
    """
    if not isinstance(data, str):
        known = dict(data)
        stored, depth = known.pop("noise", None), known.pop("depth", False)
        base = REGIMES.get(known["name"]) or folder_regime(known.pop("folder"), depth=depth)
        return replace(base, noise=noise or (parse_noise(stored) if stored else None), **{**known, **reading})
    if data in REGIMES:
        regime = REGIMES[data]
        if reading:
            raise ValueError(f"--{next(iter(reading)).replace('_', '-')} is for a folder of images, and {data} is none")
        if noise is None:
            return regime
        if regime.noise is None or (noise.kind == "depth-sensor") != regime.depth:
            own = "that of a real sensor" if regime.noise is None else regime.noise.kind
            raise ValueError(f"--noise {noise} does not fit {data}, whose noise is {own}; choose another data set")
        return replace(regime, noise=noise)
    if not Path(data).is_dir():
        names = ", ".join(REGIMES)
        raise ValueError(f"there is no denoising data set {data!r}; there are {names}; or give a folder of images")
    depth = holds_depth(Path(data)) if noise is None else noise.kind == "depth-sensor"
    return replace(folder_regime(data, depth=depth), noise=noise, **reading)


def folder_regime(path: str, *, depth: bool) -> Regime:
    """A folder of images as a data set: like the rooms if they are depth maps, like photographs if not."""
    folder = Path(path).resolve()
    return Regime(
        name=folder.name,
        about=f"images of {folder}",
        scale=2.5 if depth else 1.0,
        opens="open_folder",
        like="rooms-any" if depth else "dead-leaves",
        depth=depth,
        folder=str(folder),
    )


def holds_depth(folder: Path) -> bool:
    """Whether the first image of a folder is grey with 16 bits, as depth cameras write."""
    import numpy as np
    from PIL import Image

    for path in sorted(folder.rglob("*")):
        try:
            if path.suffix == ".npy":
                values = np.load(path, mmap_mode="r", allow_pickle=False)
                return values.dtype == np.uint16 and values.ndim == 2
            with Image.open(path) as image:
                return image.mode.startswith("I;16")
        except (OSError, ValueError):  # no image
            continue
    return False
