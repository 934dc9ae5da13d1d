"""What decides the result of a run: two runs with equal fingerprints end with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torchmetrics import Metric

from spen.model import SPEN
from spen.training.describing import describe_module, described, digest, hashed, options
from spen.training.sources import Source
from spen.training.stages import Stage


def fingerprint(
    model: SPEN,
    stages: Sequence[Stage],
    train: Source,
    dev: Source,
    metric: Metric,
    devices: int,
    precision: str = "32-true",
    higher_is_better: bool | None = None,
) -> dict[str, Any]:
    """Stages, objectives, model, data and metric as JSON, by name. The seed and the recipe are in run.json.

    The values of parameters are not in it: training changes them.
    """
    parts = {name: getattr(model, name) for name in ("features", "init", "energy")}
    return {
        "stages": ", ".join(stage.name for stage in stages),
        "stage": {stage.name: {f.name: described(getattr(stage, f.name)) for f in fields(stage)} for stage in stages},
        **{name: describe_module(part, values=False) for name, part in parts.items()},
        "minimizer": describe_module(model.minimizer, values=True),
        "train": _source(train),
        "dev": _source(dev),
        "metric": described(type(metric)),
        "metric options": options(metric),
        "devices": devices,
        **({} if precision == "32-true" else {"precision": precision}),
        **({} if higher_is_better is None else {"higher_is_better": higher_is_better}),
    }


def start_of(model: SPEN) -> str:
    """A hash of the parameters and buffers that a run starts with."""
    return hashed({name: digest(value) for name, value in model.state_dict().items()})


def _source(source: Source) -> Any:
    """What the source says of itself by ``fingerprint()`` or ``name``; else its class and the numbers it was given."""
    own = getattr(source, "fingerprint", None)
    if callable(own):
        return described(own())
    name = getattr(source, "name", None)
    if isinstance(name, str):
        return name
    plain = options(source, lambda value: value if isinstance(value, bool | int | float | str) else None)
    return {"class": described(type(source)), "batches": source.count(1), **plain}


__all__ = ["fingerprint", "start_of"]
