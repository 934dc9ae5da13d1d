"""Faults that would not raise an error by themselves: examples that mix, numbers that are not finite, an energy or a
descent without effect, a loss of exactly zero."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.potential import Potential, ScoreFunction, check_features, identity, score
from spen.descent.trajectory import Trajectory
from spen.energies.compose import terms_of
from spen.model import SPEN
from spen.tensors import select, tree_map

NO_LOSS = (
    "every loss of an epoch was exactly zero, so the weights no longer change. A hinge is zero where no violation is "
    "found: if the development score is poor, the search for one fails, and smaller rates, more steps or a smaller "
    "learning rate help (see docs/training.md)"
)
_ALONE = "An energy scores each example alone: sum over everything but the batch"
_SMALL_SHARE = 1e-3  # of the gradient that all terms supply
_SMALL_CHANGE = 1e-4  # of the size of y


class NonFinite(RuntimeError):
    """A NaN or an infinity, with the step, the term and the examples that caused it."""


class DeadEnergyWarning(UserWarning):
    """A term of the energy no longer moves y."""


class InertEnergyWarning(UserWarning):
    """A term of the energy, or the whole descent, moves y by next to nothing."""


@contextmanager
def evaluating(model: SPEN) -> Iterator[None]:
    """In eval mode; afterwards the modes of all submodules and the random number generators are restored."""
    modes = {part: part.training for part in model.modules()}
    with torch.random.fork_rng({p.device for p in model.parameters() if p.is_cuda}):
        model.eval()
        try:
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode


def check_examples_alone(model: SPEN, x: Any, tolerance: float = 1e-3) -> None:
    """Raise ValueError, with the name of the term, if a term of the energy mixes the examples of a batch.

    The energy is evaluated at the start of the descent, in eval mode. Its own errors pass unchanged.
    """
    for name, part in model.energy.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            raise ValueError(
                f"{name!r} of the energy is a {type(part).__name__}, which mixes the examples of a batch in training: "
                "use nn.GroupNorm or nn.LayerNorm, or keep it in eval mode"
            )
    with evaluating(model):
        with torch.no_grad():
            features, domain = model.features(x), model.minimizer.domain
            y = domain.output(domain.enter(model.init(features)))
        check_features(features, y.shape[0])
        features = Potential.of(model.energy, features).features  # with the step number, if the energy takes it
        features = tree_map(torch.detach, features)
        for name, term, _ in terms_of(model.energy):
            _check_term(name, term, y, features, tolerance)


def _check_term(name: str, term: ScoreFunction, y: Tensor, features: Any, tolerance: float) -> None:
    batch = y.shape[0]

    def values(rows: list[int]) -> Tensor:
        index = torch.tensor(rows, device=y.device)
        with torch.enable_grad():  # an energy may differentiate inside
            found = score(term, y.index_select(0, index).requires_grad_(), select(features, index))
        if not isinstance(found, Tensor) or found.shape != (len(rows),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the term {name!r} of the energy returned {shape} for a batch of {len(rows)}, not one number per "
                f"example, shape ({len(rows)},). {_ALONE}"
            )
        return found.detach().double()

    together = values(list(range(batch)))
    scale = float(together.abs().max())
    for i in range(min(batch, 2) if batch > 1 else 0):
        alone = values([i])[0]
        change = float((together[i] - alone).abs())
        if not change > tolerance * scale:  # or not finite, which training reports with the step of the descent
            continue
        # A batch of one may run other kernels, which round differently in bfloat16. A batch of copies of the example
        # runs the same kernels, so a difference from it is not rounding.
        moved = float((together[i] - values([i] * batch)[i]).abs())
        if moved > tolerance * scale or change > 0.1 * scale:
            raise ValueError(
                f"the term {name!r} of the energy mixes examples: its value for example {i} is "
                f"{float(together[i]):.4g} in a batch of {batch} and {float(alone):.4g} alone. {_ALONE}"
            )


def explain_non_finite(model: SPEN, x: Any, batch: str, loss: Tensor | None = None) -> NonFinite:
    """Run the descent again and name the first value in it that is not finite; then the loss, then the gradients."""
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
            found = _energies_and_gradient(potential.at(step), term, point)
            for what, value in zip(("the energy", "the gradient"), found, strict=True):
                if not bool(value.isfinite().all()):
                    return NonFinite(
                        f"{what} of the term {name!r} is not finite at step {step} of the descent, "
                        f"examples {_rows(value)} of {batch}: lower the rates or the learning rate, or clip"
                    )
    if loss is not None and not bool(loss.isfinite()):
        return NonFinite(
            f"the descent is finite at every step, but the loss of {batch} is {float(loss)}: check the loss function "
            "and the targets of this batch"
        )
    names = [n for n, p in model.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    where = f"in {', '.join(names[:3])}" if names else "in the loss"
    return NonFinite(
        f"the descent is finite at every step, but back-propagating it is not, {where}, {batch}: "
        "clip the gradient, lower the rates, or train with fewer steps"
    )


def term_gradients(model: SPEN, x: Any) -> dict[str, float]:
    """Root mean square of ∂E_k/∂y for every term k: at the prediction or at a point near it, whichever is larger.

    A data term may be zero at the prediction; the gradient of a dead term is zero near it too.
    """
    with evaluating(model):
        with torch.no_grad():
            features = model.features(x)
            output = model.minimizer(model.energy, features, model.init(features)).output
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        points = (output, output + 0.1 * output.std() * noise)
        potential = Potential.of(model.energy, features, identity).detached()

        def size(term: ScoreFunction, point: Tensor) -> float:
            return float(_energies_and_gradient(potential, term, point)[1].square().mean().sqrt())

        return {name: max(size(term, point) for point in points) for name, term, _ in terms_of(model.energy)}


def _energies_and_gradient(potential: Potential, term: ScoreFunction, point: Tensor) -> tuple[Tensor, Tensor]:
    """The energies of a term (B,) and their gradient, of the shape of y."""
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        energies = potential(leaf, term)
        gradient = None
        if energies.requires_grad:
            (gradient,) = torch.autograd.grad(energies.sum(), leaf, allow_unused=True)
    return energies.detach(), torch.zeros_like(point) if gradient is None else gradient


def _rows(value: Tensor) -> list[int]:
    return (~value.reshape(len(value), -1).isfinite().all(1)).nonzero().flatten().tolist()


class Vitals:
    """Watches the gradient of each term, and reports once when it has vanished in ``looks`` observations in a row.

    One observation is not enough: a term on pairs that exclude each other is zero in a batch without such pairs.
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
        """Warnings about the terms that died since the last observation."""
        found = []
        for name, size in sizes.items():
            self.largest[name] = max(self.largest.get(name, 0.0), size)
            vanished = size <= self.fall * self.largest[name]
            self.silent[name] = self.silent.get(name, 0) + 1 if vanished else 0
            if name in self.dead or self.silent[name] < self.looks:
                continue
            self.dead.add(name)
            found.append(
                f"the term {name!r} of the energy is dead: its gradient in y fell from {self.largest[name]:.1e} to "
                f"{size:.1e} per coordinate, so it moves nothing and can hardly come back. Start it weaker, warm up "
                "the learning rate, or scale y so that its non-linearities bend (see docs/training.md)"
            )
        return _warn(found, DeadEnergyWarning)


def find_inert(model: SPEN, x: Any, trajectory: Trajectory, largest: dict[str, float]) -> list[str]:
    """Warnings about terms and descents without effect after the first epoch, on the batch ``x`` of ``trajectory``.

    ``largest`` holds the largest gradient of each term on earlier batches. A term that had one is not inert: it may be
    zero on this batch only, or it fell, which ``Vitals`` reports. Terms in closed form, such as an entropy, are not
    checked.
    """
    sizes = term_gradients(model, x)
    learned = [name for name, _, closed in terms_of(model.energy) if not closed]
    found = [_inert_term(name, sizes, largest.get(name, 0.0)) for name in learned]
    found.append(_inert_descent(trajectory))
    return _warn([text for text in found if text is not None], InertEnergyWarning)


def _inert_term(name: str, sizes: dict[str, float], before: float) -> str | None:
    size, total = sizes[name], sum(sizes.values())
    if not math.isfinite(total) or max(size, before) > _SMALL_SHARE * total:
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


def _inert_descent(trajectory: Trajectory) -> str | None:
    start, end = trajectory.start.detach(), trajectory.output.detach()
    moved, size = float((end - start).norm()), max(float(start.norm()), float(end.norm()))
    if not moved <= _SMALL_CHANGE * size:
        return None
    return (
        f"the descent changes nothing: y_T differs from y_0 by {moved / (size or 1.0):.0e} of its size after the first "
        "epoch. Raise the rates, take more steps, or scale up the terms that are to move y (see docs/training.md)"
    )


def _warn(texts: list[str], category: type[Warning]) -> list[str]:
    for text in texts:
        warnings.warn(text, category, stacklevel=3)
    return texts
