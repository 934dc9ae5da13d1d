"""Noise as people write it: gaussian:25, gaussian:0-55, poisson:30, depth-sensor:1. Imports no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Kind", "Noise", "parse_noise"]

Kind = Literal["gaussian", "poisson", "depth-sensor"]

SPELLED = (
    "gaussian:SIGMA (of 255), poisson:PEAK (photons of a pixel of value 1) or depth-sensor:STRENGTH (1 is a Kinect)"
)


@dataclass(frozen=True)
class Noise:
    """A kind of noise and the range of its level, from which one is drawn for every crop or frame.

    Levels: gaussian, the standard deviation out of 255; poisson, the photons of a pixel of value 1; depth-sensor, the
    multiple of a Kinect's noise.
    """

    kind: Kind
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.low:g}" + (f"-{self.high:g}" if self.high > self.low else "")

    @property
    def fixed(self) -> bool:
        """Whether there is one level only."""
        return self.low == self.high


def parse_noise(text: str) -> Noise:
    """The noise of ``KIND:LEVEL`` or ``KIND:LOW-HIGH``."""
    kind, _, level = text.partition(":")
    number = r"(\d+(?:\.\d*)?|\.\d+)"
    match = re.fullmatch(rf"{number}(?:-{number})?", level)
    if kind not in get_args(Kind) or match is None:
        raise ValueError(f"--noise is {SPELLED}, a range as gaussian:0-55, not {text!r}")
    low, high = float(match[1]), float(match[2] or match[1])
    if not (low <= high and math.isfinite(high)) or (kind == "poisson" and low == 0):
        reason = "poisson:0 is no light at all" if low <= high else "the range begins with its smaller number"
        raise ValueError(f"--noise {text}: {reason}; write {SPELLED}, a range as gaussian:0-55")
    return Noise(kind, low, high)  # type: ignore[arg-type]
