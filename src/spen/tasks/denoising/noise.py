"""Noise as ``--noise`` takes it: gaussian:25, gaussian:0-55, poisson:30, depth-sensor:1, kinect:1. Imports no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["gaussian", "poisson", "depth-sensor"]

SENSORS = {"depth-sensor": 0.0, "kinect": 1.0, "depth-sensor|kinect": 0.5}
"""How --noise spells a depth sensor, and the share of its readings with correlated noise."""

SPELLED = (
    "gaussian:SIGMA (of 255), poisson:PEAK (photons of a pixel of value 1), depth-sensor:STRENGTH (white in disparity, "
    "1 is a Kinect) or kinect:STRENGTH (correlated between neighbours)"
)


@dataclass(frozen=True)
class Noise:
    """A kind of noise and the range of its level, from which one is drawn for every crop or frame.

    Levels: gaussian, the standard deviation out of 255; poisson, the photons of a pixel of value 1; depth-sensor, the
    multiple of a Kinect's noise. ``correlated`` is the share of a depth sensor's readings with correlated noise
    (``Sensor``): depth-sensor:1 has none, kinect:1 has nothing else, depth-sensor|kinect:1 has half of each.
    """

    kind: Kind
    low: float
    high: float
    correlated: float = 0.0

    def __str__(self) -> str:
        name = next((n for n, share in SENSORS.items() if share == self.correlated), self.kind)
        name = name if self.kind == "depth-sensor" else self.kind
        return f"{name}:{self.low:g}" + (f"-{self.high:g}" if self.high > self.low else "")

    @property
    def fixed(self) -> bool:
        """Whether there is one level only."""
        return self.low == self.high


def parse_noise(text: str) -> Noise:
    """The noise of ``KIND:LEVEL`` or ``KIND:LOW-HIGH``."""
    kind, _, level = text.partition(":")
    number = r"(\d+(?:\.\d*)?|\.\d+)"
    match = re.fullmatch(rf"{number}(?:-{number})?", level)
    if kind not in (*get_args(Kind), *SENSORS) or match is None:
        raise ValueError(f"--noise is {SPELLED}, a range as gaussian:0-55, not {text!r}")
    low, high = float(match[1]), float(match[2] or match[1])
    if not (low <= high and math.isfinite(high)) or (kind == "poisson" and low == 0):
        reason = "poisson:0 is no light at all" if low <= high else "the range begins with its smaller number"
        raise ValueError(f"--noise {text}: {reason}; write {SPELLED}, a range as gaussian:0-55")
    if kind in SENSORS:
        return Noise("depth-sensor", low, high, SENSORS[kind])
    return Noise(kind, low, high)  # type: ignore[arg-type]
