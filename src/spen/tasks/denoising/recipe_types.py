"""What a denoising recipe is made of: a method, a schedule, and options that are checked by name, type and range."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_type_hints

from spen.tasks.options import parse_value

Holes = Literal["auto", "zero", "none"]
"""Which pixels hold no reading: zeros (``"auto"``: not of 8 bits, where 0 is black), or what is not finite alone."""

PriorName = Literal["foe", "deep", "convex", "convex+", "unet"]
ObjectiveName = Literal["end-to-end", "hinge"]
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

    What the paper does is a switch each: ``scaled=False`` sets s = 1; ``mask=False`` takes missing readings as the
    zeros that the sensor writes, in the data term too; ``fill=False`` starts from y_0 = x with these zeros;
    ``average_pooling`` divides a deep prior by the number of pixels; ``dampening`` is that of ``Momentum``.
    ``line_search`` halves a step that would raise the energy up to ten times, and else leaves it out.
    """

    prior: PriorName
    steps: int
    momentum: float = 0.25
    dampening: float = 0.0
    line_search: bool = False
    learn_rates: bool = True
    iterate_loss: Literal["harmonic", "last"] = "harmonic"
    objective: ObjectiveName = "end-to-end"
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
    floor: float = 0.0  # > 0: the U-Net is told the noise, and this is added to it
    gradient: GradientName = "compiled"

    @property
    def told(self) -> bool:
        """Whether its features hold the noise."""
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
    """A feed-forward predictor trained with the same loss: ``kind`` names it, width and depth size it."""

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

    @property
    def told(self) -> bool:
        """Whether its features hold the noise."""
        return self.floor > 0 and self.kind == "unet"

    def unused(self) -> set[str]:
        """Options that change nothing in a network like this one."""
        of_unet, of_convnet = {"blocks", "scales", "gain", "floor"}, {"depth", "residual", "mask"}
        if self.kind == "unet":
            return of_convnet | {"size", "iterations"} | ({"gain"} if self.floor else set())
        return of_unet | ({"iterations"} if self.kind == "convnet" else of_convnet | {"blind"})


@dataclass(frozen=True, kw_only=True)
class Classical:
    """A method with one number to choose on development data."""

    kind: Literal["bm3d", "tv", "forest"]
    told = False

    def unused(self) -> set[str]:
        """It is not trained by gradient: no schedule."""
        return {f.name for f in fields(Schedule)}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a system is trained: batches of random crops, Adam with warm-up and a cosine, the best epoch on dev kept.

    ``seconds`` > 0 ends training when they are spent, with the whole of the cosine fitted to them, if the batches have
    not come to an end before. ``average`` > 0 scores and keeps an exponential mean of the weights with this decay.
    ``pretrain`` is the share of batches and seconds in which the net of spen-best is trained as a feed-forward
    denoiser at ``pretrain_rate``, before its square becomes an energy (Sec. 5 pretrains F through Init likewise). It is
    off: ∇E is JᵀR, and training for R alone says little about J. ``flips`` turns crops of depth images over as well,
    though a sensor's shadows fall to one side; those of grey images always are. ``fresh`` lets a simulated sensor read
    the frames of every batch anew; grey images always have noise of their own. ``every_pixel`` trains on and chooses by
    all pixels, with a truth of zero where it is not known. ``clip`` bounds the norm of the gradient; 0 does not.
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
    pretrain: float = 0.0
    pretrain_rate: float = 1e-3
    flips: bool = False
    fresh: bool = False
    every_pixel: bool = False

    @property
    def epochs(self) -> int:
        """As few of equal length as ``per_epoch`` allows."""
        return max(1, math.ceil(self.batches / self.per_epoch))

    @property
    def epoch_batches(self) -> int:
        """Of one epoch; all epochs together have ``batches``, rounded up to whole epochs."""
        return math.ceil(self.batches / self.epochs)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A row of the table."""

    name: str
    about: str
    paper: float | None
    method: System | Network | Classical
    schedule: Schedule = Schedule()
    task: str = "denoising"

    def with_options(self, **options: Any) -> Recipe:
        """Some options of the method or the schedule changed (`--set key=value`); one that does nothing is named."""
        recipe = self.restored(options)
        if useless := sorted(recipe.method.unused().intersection(options)):
            known = ", ".join(sorted(recipe.option_names()))
            raise ValueError(f"recipe {self.name} does not use the option {useless[0]!r}; it uses {known or 'none'}")
        return recipe

    def restored(self, options: dict[str, Any]) -> Recipe:
        """With all options as a finished run wrote them down, used or not."""
        recipe = self
        for key, value in options.items():
            homes = [part for part in ("method", "schedule") if key in {f.name for f in fields(getattr(recipe, part))}]
            if not homes:
                known = sorted(f.name for part in (self.method, self.schedule) for f in fields(part))
                raise ValueError(f"recipe {self.name} has no option {key!r}; it has {', '.join(known)}")
            part = getattr(recipe, homes[0])
            recipe = replace(recipe, **{homes[0]: replace(part, **{key: _checked(part, key, value)})})
        return recipe

    def option_names(self) -> set[str]:
        """What `with_options` can change."""
        return {f.name for part in (self.method, self.schedule) for f in fields(part)} - self.method.unused()

    def describe(self) -> dict[str, Any]:
        """As plain values, for the run's folder."""
        return {"name": self.name, "task": self.task, "method": asdict(self.method), "schedule": asdict(self.schedule)}


_FROM_ZERO = {"warmup"}  # other whole numbers begin with 1


def _checked(part: Any, key: str, value: Any) -> Any:
    """The value as the type of the one it replaces; options from a command line come as text."""
    old = getattr(part, key)
    kind = get_type_hints(type(part))[key]
    found = parse_value(kind, key, value) if isinstance(value, str) else value
    least = 0 if key in _FROM_ZERO else 1
    if isinstance(old, tuple) and (len(found) != 2 or min(found) < 1):
        raise ValueError(f"{key} is height and width, as in 96x128, not {value!r}")
    if isinstance(old, int) and not isinstance(old, bool) and found < least:
        raise ValueError(f"{key} is a whole number from {least} on, not {found}")
    if isinstance(old, float) and not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{key} is a number from 0 on, not {found}")
    return found
