"""An energy that does nothing from the start: terms without a share in dE/dy, a descent that ends where it began."""

from __future__ import annotations

import math
import warnings
from typing import Any

from spen.descent.trajectory import Trajectory
from spen.energies.compose import terms_of
from spen.model import SPEN
from spen.training.health import term_gradients

SHARE = 1e-3  # of the gradient that all terms supply
CHANGE = 1e-4  # of the size of y


class InertEnergyWarning(UserWarning):
    """A term of the energy, or the whole descent, moves y by next to nothing."""


def inert(model: SPEN, x: Any, trajectory: Trajectory, largest: dict[str, float]) -> list[str]:
    """Sentences about what moves nothing after the first epoch, on the batch ``x`` that led to ``trajectory``.

    ``largest`` holds the largest gradient of each term on earlier batches. A term that had one is not inert: it may be
    rightly silent on this batch, without pairs that exclude each other say, or it fell, and ``Vitals`` says so.
    Terms in closed form, such as an entropy, are not judged.
    """
    sizes = term_gradients(model, x)
    learned = [name for name, _, closed in terms_of(model.energy) if not closed]
    sentences = [s for name in learned if (s := _about_term(name, sizes, largest.get(name, 0.0)))]
    if sentence := _about_descent(trajectory):
        sentences.append(sentence)
    for sentence in sentences:
        warnings.warn(sentence, InertEnergyWarning, stacklevel=2)
    return sentences


def _about_term(name: str, sizes: dict[str, float], before: float) -> str | None:
    size, total = sizes[name], sum(sizes.values())
    if not math.isfinite(total) or max(size, before) > SHARE * total:
        return None
    if size == 0:
        return (
            f"the term {name!r} supplies nothing of the gradient of the energy in y after the first epoch, neither at "
            "the prediction nor beside it: raise its first weights (see docs/training.md)"
        )
    scale = math.floor(math.log10(max(sizes.values()) / size))
    return (
        f"the term {name!r} supplies {size / total:.0e} of the gradient of the energy in y after the first epoch, so "
        f"the descent hardly follows it: scale it by about 1e{scale}, or raise its first weights (see docs/training.md)"
    )


def _about_descent(trajectory: Trajectory) -> str | None:
    start, end = trajectory.start.detach(), trajectory.output.detach()
    moved, size = float((end - start).norm()), max(float(start.norm()), float(end.norm()))
    if not moved <= CHANGE * size:
        return None
    return (
        f"the descent changes nothing: y_T differs from y_0 by {moved / (size or 1.0):.0e} of its size after the first "
        "epoch. Raise the rates, take more steps, or scale up the terms that are to move y (see docs/training.md)"
    )
