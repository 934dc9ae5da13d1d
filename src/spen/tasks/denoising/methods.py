"""What a denoising recipe is made of: a method, a schedule, and options that are checked by name, type and range.

Imports nothing heavy: `spen list` reads it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_type_hints

from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.regimes import Regime
from spen.tasks.options import parse_value

GradientName = Literal[
    "auto",
    "exact",
    "checkpointed",
    "finite-difference",
    "forward-over-reverse",
    "compiled",
    "compiled-bf16",
    "written",
    "written-bf16",
    "written-compiled",
]

_GAIN = 10.0  # a U-Net's SiLU bends near 1, a softplus of temperature 25 near 0.1: its s is so many times the scale


@dataclass(frozen=True, kw_only=True)
class System:
    """‖m(y − x)‖² + w·P(s·y)/s², descended ``steps`` times with momentum from the image with its holes filled.

    s is the scale of the data set, which brings the noise near 0.05 … 0.1, where a softplus of temperature 25 bends.
    ``weight`` is the first value of w, the paper's 2σ², which is trained: small, so that the prior starts almost off
    and cannot lower the loss by switching itself off.

    The paper's choices are options: ``scaled=False`` sets s = 1; ``mask=False`` takes missing readings as zeros, in
    the data term too; ``fill=False`` starts from y_0 = x with these zeros; ``average_pooling`` divides a deep prior by
    the number of pixels; ``dampening`` is that of ``Momentum``. ``line_search`` halves a step that would raise the
    energy up to ten times, and skips it if that does not help.
    """

    prior: Literal["foe", "deep", "convex", "convex+", "unet"]
    steps: int
    momentum: float = 0.25
    dampening: float = 0.0
    line_search: bool = False
    learn_rates: bool = True
    iterate_loss: Literal["harmonic", "last"] = "harmonic"
    objective: Literal["end-to-end", "hinge"] = "end-to-end"
    weight: float = 0.1
    rate: float = 0.2
    temperature: float = 25.0
    width: int = 32
    size: int = 7
    blind: bool = True
    scaled: bool = True
    mask: bool = True
    fill: bool = True
    average_pooling: bool = False
    blocks: int = 2  # of a U-Net at each of its scales
    scales: int = 3
    gain: float = _GAIN
    floor: float = 0.0  # > 0: the U-Net reads the noise level, and this is added to it
    gradient: GradientName = "compiled"

    @property
    def reads_noise(self) -> bool:
        """Whether its features hold the noise level."""
        return self.floor > 0 and self.prior == "unet"

    def unused(self) -> set[str]:
        """Options that change nothing in a system like this one."""
        unused = set() if self.mask else {"fill"}  # without a mask nothing is known to be missing
        if self.prior == "unet":
            return unused | {"temperature", "size", "average_pooling"} | ({"gain", "scaled"} if self.floor else set())
        unused |= {"blocks", "scales", "gain", "floor"} | ({"average_pooling"} if self.prior == "foe" else set())
        return unused | ({"blind"} if self.prior == "convex" else set())


@dataclass(frozen=True, kw_only=True)
class Network:
    """A feed-forward predictor trained with the same loss: ``kind`` names it, width and depth size it.

    ``bf16`` rounds the operands of a U-Net's convolutions in training on a CPU, too, which is faster where the
    processor has AVX-512 BF16 or AMX.
    """

    kind: Literal["convnet", "proximal", "unet"]
    width: int = 32
    depth: int = 2
    size: int = 7
    residual: bool = True
    blind: bool = True
    mask: bool = True
    iterations: int = 5
    blocks: int = 2
    scales: int = 3
    gain: float = _GAIN
    floor: float = 0.0
    bf16: bool = False

    @property
    def reads_noise(self) -> bool:
        """Whether its features hold the noise level."""
        return self.floor > 0 and self.kind == "unet"

    def unused(self) -> set[str]:
        """Options that change nothing in a network like this one."""
        of_unet, of_convnet = {"blocks", "scales", "gain", "floor", "bf16"}, {"depth", "residual", "mask"}
        if self.kind == "unet":
            return of_convnet | {"size", "iterations"} | ({"gain"} if self.floor else set())
        return of_unet | ({"iterations"} if self.kind == "convnet" else of_convnet | {"blind"})


@dataclass(frozen=True, kw_only=True)
class Classical:
    """A method with one number to choose on development data."""

    kind: Literal["bm3d", "tv", "forest"]
    reads_noise = False

    def unused(self) -> set[str]:
        """It is not trained by gradient: no schedule."""
        return {f.name for f in fields(Schedule)}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a system is trained: batches of random crops, Adam with warm-up and a cosine, the best epoch on dev kept.

    ``seconds`` > 0 ends training after that time at the latest, with the whole cosine fitted to it. ``average`` > 0
    scores and saves an exponential mean of the weights with this decay. ``flips`` also flips crops of depth images,
    though a sensor's shadows fall to one side; those of grey images are always flipped. ``fresh`` simulates new sensor
    readings for every batch; grey images always get new noise. ``every_pixel`` trains on and chooses by all pixels,
    with a truth of zero where it is not known. ``clip`` bounds the norm of the gradient; 0 does not.
    """

    batches: int = 4000
    batch_size: int = 16
    learning_rate: float = 4e-3
    warmup: int = 200
    decay_to: float = 0.02
    clip: float = 1.0
    epsilon: float = 1e-14  # a squared error near 1e-4 behind a small prior weight: gradients of 1e-6 … 1e-10
    crop: tuple[int, int] = (96, 128)
    per_epoch: int = 200
    seconds: float = 0.0
    average: float = 0.0
    flips: bool = False
    fresh: bool = False
    every_pixel: bool = False

    @property
    def epochs(self) -> int:
        """As few epochs of equal length as ``per_epoch`` allows."""
        return max(1, math.ceil(self.batches / self.per_epoch))

    @property
    def epoch_batches(self) -> int:
        """Batches of one epoch; all epochs together have ``batches``, rounded up to whole epochs."""
        return math.ceil(self.batches / self.epochs)


@dataclass(frozen=True)
class Recipe:
    """A row of the table; ``paper`` is the paper's PSNR."""

    name: str
    about: str
    paper: float | None
    method: System | Network | Classical
    schedule: Schedule = Schedule()
    task: str = "denoising"

    def with_options(self, **options: Any) -> Recipe:
        """Options of the method or the schedule changed (`--set key=value`); one without an effect is an error."""
        recipe = self.restored(options)
        if useless := sorted(recipe.method.unused().intersection(options)):
            known = ", ".join(sorted(recipe.option_names()))
            raise ValueError(f"recipe {self.name} does not use the option {useless[0]!r}; it uses {known or 'none'}")
        return recipe

    def restored(self, options: dict[str, Any]) -> Recipe:
        """With the options that a finished run stored, used or not."""
        parts: dict[str, Any] = {"method": self.method, "schedule": self.schedule}
        homes = {f.name: part for part, value in parts.items() for f in fields(value)}
        changes: dict[str, dict[str, Any]] = {part: {} for part in parts}
        for key, value in options.items():
            if key not in homes:
                raise ValueError(f"recipe {self.name} has no option {key!r}; it has {', '.join(sorted(homes))}")
            changes[homes[key]][key] = _checked(parts[homes[key]], key, value)
        return replace(self, **{part: replace(value, **changes[part]) for part, value in parts.items()})

    def option_names(self) -> set[str]:
        """What `with_options` can change."""
        return {f.name for part in (self.method, self.schedule) for f in fields(part)} - self.method.unused()

    def noise_kind(self, regime: Regime) -> Kind | None:
        """The kind of noise whose level the model reads; None if it reads none."""
        return regime.kind if self.method.reads_noise else None

    def describe(self) -> dict[str, Any]:
        """As plain values, for run.json."""
        return {"name": self.name, "task": self.task, "method": asdict(self.method), "schedule": asdict(self.schedule)}


def _checked(part: Any, key: str, value: Any) -> Any:
    """The value with the type of the one it replaces; options of a command line are text."""
    old = getattr(part, key)
    kind = get_type_hints(type(part))[key]
    found = parse_value(kind, key, value) if isinstance(value, str) else value
    least = 0 if key == "warmup" else 1
    if isinstance(old, tuple) and (len(found) != 2 or min(found) < 1):
        raise ValueError(f"{key} is height and width, as in 96x128, not {value!r}")
    if isinstance(old, int) and not isinstance(old, bool) and found < least:
        raise ValueError(f"{key} is a whole number from {least} on, not {found}")
    if isinstance(old, float) and not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{key} is a number from 0 on, not {found}")
    return found
