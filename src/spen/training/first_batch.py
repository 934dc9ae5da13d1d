"""Before anything is trained: each term of the energy returns one number per example, and scores each example alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spen.descent.potential import Potential, ScoreFunction, check_features, score
from spen.energies.compose import terms_of
from spen.model import SPEN
from spen.tensors import select, tree_map
from spen.training.health import as_it_predicts

_RULE = "An energy scores each example alone: sum over everything but the batch"
_LOOKS = 2  # examples that are scored alone


def check_examples_alone(model: SPEN, x: Any, tolerance: float = 1e-3) -> None:
    """Raise ValueError, with the name of the term, if a term of the energy mixes the examples of a batch.

    The energy is evaluated at the start of the descent, as it predicts (``eval``). Its own errors pass unchanged.
    Afterwards modes and random numbers are as they were.
    """
    with as_it_predicts(model):
        with torch.no_grad():
            features, domain = model.features(x), model.minimizer.domain
            y = domain.output(domain.enter(model.init(features)))
        check_features(features, y.shape[0])
        cut = tree_map(
            torch.detach, Potential.of(model.energy, features).features
        )  # with the first step, if it is asked for
        for name, term, _ in terms_of(model.energy):
            _check_term(name, term, y, cut, tolerance)


def _check_term(name: str, term: ScoreFunction, y: Tensor, features: Any, tolerance: float) -> None:
    batch = y.shape[0]

    def values(rows: list[int] | None = None) -> Tensor:
        index = None if rows is None else torch.tensor(rows, device=y.device)
        point = y if index is None else y.index_select(0, index)
        with torch.enable_grad():  # an energy may differentiate inside
            rows_of = features if index is None else select(features, index)
            found = score(term, point.detach().requires_grad_(), rows_of)
        if not isinstance(found, Tensor) or found.shape != (len(point),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the term {name!r} of the energy returned {shape} for a batch of {len(point)}, not one number per "
                f"example, shape ({len(point)},). {_RULE}"
            )
        return found.detach().double()

    together = values()
    scale = float(together.abs().max())
    for i in range(min(batch, _LOOKS) if batch > 1 else 0):
        alone = values([i])[0]
        change = float((together[i] - alone).abs())
        if not change > tolerance * scale:  # or not finite, which training reports with the step of the descent
            continue
        # In a batch of one other kernels may run, in bfloat16 with other digits. Copies of one example in the place of
        # its neighbours run the same ones, so what they change is no rounding.
        moved = float((together[i] - values([i] * batch)[i]).abs())
        if moved > tolerance * scale or change > 0.1 * scale:
            raise ValueError(
                f"the term {name!r} of the energy mixes examples: its value for example {i} is "
                f"{float(together[i]):.4g} in a batch of {batch} and {float(alone):.4g} alone. {_RULE}"
            )
