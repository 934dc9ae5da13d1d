"""Table 1 as typed values, with the paper's figures. Imports nothing heavy: `spen list` reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spen.tasks.denoising.methods import Classical, Network, Recipe, Schedule, System
from spen.tasks.denoising.regimes import REGIMES, Regime

_FOE_WEIGHT = 0.005  # a filter's response is not averaged down by further layers: the same push needs less weight


_BEST = Schedule(batches=8000, learning_rate=1e-3, average=0.999)

# Grey images are 180×180 and their noise does not know its neighbours: many small crops. Their edges are of the size of
# their noise, so that nothing need be compressed: worth 0.3 dB on development images after 300 small batches.
# A width of 64 takes a GPU hardly longer than one of 48, which its tiles do not fill (docs/scripts/unet_step.py).
_GREY = {"crop": (64, 64), "batch_size": 32, "batches": 60_000, "per_epoch": 1000, "width": 64, "blind": False}

# One walk through one room: a net of three scales has memorised it after 500 batches (54.4 dB on frames far
# away, 54.0 after 2,000). One scale sees less of the room, flipped crops show it less often, and training is short; all
# of it chosen on redkitchen-half.
_ROOM = {"batches": 1200, "per_epoch": 100, "warmup": 50, "average": 0.99}
_ROOM_NET = {**_ROOM, "flips": True, "scales": 1, "blocks": 3}

_DEPTH_FLOOR = 5e-4  # 2 mm
_PHOTO_FLOOR = 4e-3  # 1/255

_ON: dict[tuple[str, str], dict[str, Any]] = {
    ("unet", "gaussian"): _GREY,
    # A second step was worth 0.04 dB after 300 batches of a small net; its time is better spent on a wider net.
    ("spen-best", "gaussian"): {**_GREY, "steps": 1, "weight": 10.0},
    # Depth maps have edges of a hundred times their noise, and noise of a thousandth of the range.
    ("denoise", "rooms-any"): {"blind": True, "floor": _DEPTH_FLOOR},
    ("dp-3", "redkitchen"): _ROOM,
    ("unet", "redkitchen"): _ROOM_NET,
    ("spen-best", "redkitchen"): _ROOM_NET,
}
"""Options of a recipe that differ on one data set."""


def _all() -> list[Recipe]:
    foe = System(prior="foe", steps=20, rate=0.05, weight=_FOE_WEIGHT)
    # 20 steps at momentum 0.75 travel as far as 3 steps of 0.2 would at 0.25.
    foe_20 = replace(foe, momentum=0.75, learn_rates=False, iterate_loss="last", rate=0.03)
    deep = System(prior="deep", steps=20, rate=0.05)
    # The hinge falls to nothing, and learning stops, once E is too curved for the descent that looks for violations:
    # rates of 0.05 end there after 200 small batches, 0.02 does not (docs/experiments/denoising.md).
    careful: dict[str, Any] = {"objective": "hinge", "learn_rates": False, "rate": 0.02}
    # Five times the rate of the nets is worth 0.8 dB after 400 small batches, for a field of experts and for a deep
    # prior alike (docs/experiments/denoising.md).
    fast, slower = Schedule(learning_rate=2e-2), Schedule(learning_rate=1e-2)
    # Rates of 0.1 beside a weight of 4 take 0.4 of what R finds at each step.
    best = System(prior="unet", steps=3, rate=0.1, weight=4.0, momentum=0.0, iterate_loss="last")
    best = replace(best, gradient="written-compiled")
    # One step and few channels: a CPU trains them in an hour or two.
    for_range = replace(best, steps=1, weight=10.0, width=16, floor=_DEPTH_FLOOR)
    for_photos = replace(for_range, blind=False, floor=_PHOTO_FLOOR)
    ranged = replace(_BEST, learning_rate=3e-3, crop=(64, 64))
    convnet = Network(kind="convnet")
    return [
        Recipe("bm3d", "block matching and 3-D filtering", 35.46, Classical(kind="bm3d")),
        Recipe("tv", "total variation", None, Classical(kind="tv")),
        Recipe("filter-forest", "a forest of linear filters", 35.63, Classical(kind="forest")),
        Recipe(
            "proximal-net",
            "five unrolled primal-dual iterations, ℓ1 field of experts",
            36.31,
            Network(kind="proximal"),
        ),
        Recipe(
            "convnet",
            "a feed-forward net of the deep prior's shape, as the paper has it",
            37.0,
            replace(convnet, residual=False, blind=False, mask=False),
        ),
        Recipe(
            "convnet+",
            "the same as a residual network that reads the mask of missing pixels and zero-mean input",
            None,
            convnet,
        ),
        Recipe("foe-20", "field of experts, 20 steps, momentum 0.75", 36.41, foe_20, fast),
        Recipe("foe-20+", "the same with a loss on every iterate, momentum 0.25, learned rates", 37.34, foe, fast),
        Recipe("foe-3", "field of experts, 3 steps", 37.62, replace(foe, steps=3, rate=0.2), fast),
        Recipe("foe-ssvm", "field of experts by the structured SVM", 37.7, replace(foe, **careful), slower),
        Recipe("dp-20", "deep prior, 20 steps", 40.3, deep, fast),
        Recipe(
            "dp-3",
            "deep prior, 3 steps: the paper's model, for depth maps with twelve times the noise of a Kinect",
            40.4,
            replace(deep, steps=3, rate=0.1),
            fast,
        ),
        Recipe("dp-ssvm", "deep prior by the structured SVM", 38.7, replace(deep, **careful), slower),
        Recipe(
            "dp-icnn",
            "deep prior as an input-convex network, 3 steps",
            None,
            replace(deep, prior="convex", steps=3, rate=0.2, weight=0.02),
        ),
        Recipe(
            "dp-icnn+",
            "the same with free first filters, still convex",
            None,
            replace(deep, prior="convex+", steps=3, rate=0.1),
            fast,
        ),
        Recipe(
            "denoise",
            "images of your own: a small U-Net's energy that is given the noise, or estimates it; 1 step",
            None,
            for_photos,
            replace(ranged, batches=6000),
        ),
        Recipe(
            "depth",
            "depth maps at 0.5 to 15 times the noise of a Kinect: the same energy",
            None,
            for_range,
            # Whole frames are read anew for each crop: fewer and larger crops take less time.
            replace(ranged, batches=20_000, batch_size=6, per_epoch=250, crop=(144, 192), fresh=True, flips=True),
        ),
        Recipe(
            "photo",
            "photographs, grey or in colour, with Gaussian noise of 0 to 55/255: the same energy, wider",
            None,
            replace(for_photos, width=24),
            replace(ranged, batches=30_000, per_epoch=300),
        ),
        Recipe("unet", "the U-Net of spen-best as a feed-forward denoiser", None, Network(kind="unet"), _BEST),
        Recipe("spen-best", "½‖R(y; x)‖², R the noise that a small U-Net sees, 3 steps", None, best, _BEST),
    ]


_AS_PRINTED = ("convnet", "foe-20", "foe-20+", "foe-3", "foe-ssvm", "dp-20", "dp-3", "dp-ssvm", "dp-icnn")

_ADAM = Schedule(learning_rate=1e-3, warmup=0, decay_to=1.0, clip=0.0, epsilon=1e-8, every_pixel=True)
"""Adam with its defaults and nothing else; the best epoch on development data is kept, as the paper does."""


_PAPER = ", as the paper has it"


def _as_printed(recipe: Recipe) -> Recipe:
    """The row with the paper's own choices, and the momentum of the authors' code, where the tuned row departs."""
    method = recipe.method
    if isinstance(method, System):
        method = replace(method, rate=0.1, dampening=method.momentum, blind=False, scaled=False, mask=False)
        method = replace(method, average_pooling=method.prior != "foe")
    about = recipe.about.partition(":")[0].removesuffix(_PAPER) + _PAPER
    return replace(recipe, name=f"paper/{recipe.name}", about=about, method=method, schedule=_ADAM)


RECIPES = {recipe.name: recipe for recipe in _all()}
RECIPES |= {f"paper/{name}": _as_printed(RECIPES[name]) for name in _AS_PRINTED}
PAPER = tuple(f"paper/{name}" for name in _AS_PRINTED)


ABLATION = (
    "dp-3",
    "dp-3:iterate_loss=last",
    "dp-3:learn_rates=false",
    "dp-3:steps=1:rate=0.5",
    "dp-3:steps=5:rate=0.15",
    "dp-3:steps=10:rate=0.1",
    "dp-3:steps=20:rate=0.05",
    "dp-3:momentum=0",
    "dp-3:momentum=0.75",
    "dp-3:gradient=exact",
    "dp-3:gradient=finite-difference",
    "dp-3:gradient=compiled-bf16",
)
"""Section 6.1 one choice at a time: loss, rates, T (with a first rate that travels as far), momentum, strategy."""


def find_recipe(name: str, data: str | Regime = "") -> Recipe:
    """A recipe by its name, as it is trained on ``data``; a wrong name gets the list. ``dp-3:steps=5`` changes one."""
    base, *changes = name.split(":")
    if base not in RECIPES:
        raise ValueError(f"there is no denoising recipe {base!r}; there are {', '.join(RECIPES)}")
    regime = data if isinstance(data, Regime) else REGIMES.get(data)
    recipe = RECIPES[base].with_options(**_ON.get((base, regime.home), {})) if regime else RECIPES[base]
    if not changes:
        return recipe
    for change in changes:
        if "=" not in change:
            raise ValueError(f"{name!r} does not read as recipe:key=value: {change!r} has no =")
    changed = recipe.with_options(**dict(change.split("=", 1) for change in changes))
    return replace(changed, name=name, paper=None)


def default_data(recipe: str) -> str:
    """The data set that a recipe is trained on by default."""
    others = {"photo": "dead-leaves", "denoise": "dead-leaves", "depth": "rooms-any"}
    return others.get(recipe.partition(":")[0], "rooms")


def expand_rows(rows: tuple[str, ...]) -> tuple[str, ...]:
    """Rows of the table; `ablation`, `paper` and `tuned` stand for many, and no rows for `tuned`."""
    # The table has one level of noise: models for a range are not in it.
    tuned = tuple(name for name, recipe in RECIPES.items() if name not in PAPER and not recipe.method.reads_noise)
    many = {"ablation": ABLATION, "paper": PAPER, "tuned": tuned}
    return tuple(x for row in rows or ("tuned",) for x in many.get(row, (row,)))
