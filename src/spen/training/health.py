"""How a training run goes wrong in silence: numbers that are not finite, an energy that has died, a loss of nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spen.descent.potential import Potential, ScoreFunction, identity
from spen.energies.compose import terms_of
from spen.model import SPEN


class NonFinite(RuntimeError):
    """A NaN or an infinity, with the step, the term and the examples that caused it."""


NO_LOSS = (
    "every loss of an epoch was exactly zero, so the weights no longer change. A hinge is zero where no violation is "
    "found: if the development score is poor, the search for one fails, and smaller rates, more steps or a smaller "
    "learning rate help (see docs/training.md)"
)


class DeadEnergyWarning(UserWarning):
    """A term of the energy no longer moves y."""


def explain_non_finite(model: SPEN, x: Any, batch: str) -> NonFinite:
    """Minimise once more and look at every iterate: the first thing there that is not finite, by name."""
    with torch.no_grad():
        features = model.features(x)
        start = model.init(features)
    if not bool(start.isfinite().all()):
        return NonFinite(f"Init returned numbers that are not finite, examples {_rows(start)} of {batch}")
    with torch.no_grad():
        trajectory = model.minimizer(model.energy, features, start)
    potential = Potential.of(model.energy, features, identity).detached()
    for step, point in enumerate((trajectory.start, *trajectory.outputs[:-1])):
        for name, term, _ in terms_of(model.energy):
            for what, value in zip(("the energy", "the gradient"), _at(potential.at(step), term, point), strict=True):
                if not bool(value.isfinite().all()):
                    return NonFinite(
                        f"{what} of the term {name!r} is not finite at step {step} of the descent, "
                        f"examples {_rows(value)} of {batch}: lower the rates or the learning rate, or clip"
                    )
    names = [n for n, p in model.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    where = f"in {', '.join(names[:3])}" if names else "in the loss"
    return NonFinite(
        f"the descent is finite at every step, but back-propagating it is not, {where}, {batch}: "
        "clip the gradient, lower the rates, or train with fewer steps"
    )


def term_gradients(model: SPEN, x: Any) -> dict[str, float]:
    """Root mean square of ∂E_k/∂y for every term k: at the prediction or at a point beside it, whichever is larger.

    A data term may rightly vanish at the prediction; a dead one vanishes beside it too. Looking changes nothing.
    """
    sizes = {}
    with as_it_predicts(model):
        with torch.no_grad():
            features = model.features(x)
            output = model.minimizer(model.energy, features, model.init(features)).output
        potential = Potential.of(model.energy, features, identity).detached()
        for name, term, _ in terms_of(model.energy):
            sizes[name] = max(_gradient_size(potential, term, point) for point in (output, _beside(output)))
    return sizes


@contextmanager
def as_it_predicts(model: SPEN) -> Iterator[None]:
    """In eval mode; afterwards every mode and every generator of random numbers is as it was."""
    modes = {part: part.training for part in model.modules()}
    with torch.random.fork_rng({p.device for p in model.parameters() if p.is_cuda}):
        model.eval()
        try:
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode


def _gradient_size(potential: Potential, term: ScoreFunction, point: Tensor) -> float:
    _, gradient = _at(potential, term, point)
    return float(gradient.square().mean().sqrt())


def _at(potential: Potential, term: ScoreFunction, point: Tensor) -> tuple[Tensor, Tensor]:
    """The energies of a term (B,) and their gradient, of the shape of y."""
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        energies = potential(leaf, term)
        gradient = None
        if energies.requires_grad:
            (gradient,) = torch.autograd.grad(energies.sum(), leaf, allow_unused=True)
    return energies.detach(), torch.zeros_like(point) if gradient is None else gradient


def _beside(output: Tensor) -> Tensor:
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return output + 0.1 * output.std() * noise


class Vitals:
    """Watches the gradient of each term and says once when one has died: ``looks`` times in a row without a sign.

    One look is not enough: a term on pairs that exclude each other is rightly silent in a batch without such pairs.
    """

    def __init__(self, fall: float = 1e-5, looks: int = 3) -> None:
        self.fall, self.looks = fall, looks
        self.silent: dict[str, int] = {}
        self.largest: dict[str, float] = {}
        self.dead: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        return {"largest": dict(self.largest), "silent": dict(self.silent), "dead": sorted(self.dead)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.largest, self.silent, self.dead = dict(state["largest"]), dict(state["silent"]), set(state["dead"])

    def observe(self, sizes: dict[str, float]) -> list[str]:
        """Sentences about the terms that died since the last look."""
        sentences = []
        for name, size in sizes.items():
            self.largest[name] = max(self.largest.get(name, 0.0), size)
            quiet = size <= self.fall * self.largest[name]
            self.silent[name] = self.silent.get(name, 0) + 1 if quiet else 0
            if name in self.dead or self.silent[name] < self.looks:
                continue
            self.dead.add(name)
            sentences.append(
                f"the term {name!r} of the energy is dead: its gradient in y fell from {self.largest[name]:.1e} to "
                f"{size:.1e} per coordinate, so it moves nothing and can hardly come back. Start it weaker, warm up "
                "the learning rate, or scale y so that its non-linearities bend (see docs/training.md)"
            )
        for sentence in sentences:
            warnings.warn(sentence, DeadEnergyWarning, stacklevel=2)
        return sentences


def _rows(value: Tensor) -> list[int]:
    return (~value.flatten(1).isfinite().all(1) if value.dim() > 1 else ~value.isfinite()).nonzero().flatten().tolist()
