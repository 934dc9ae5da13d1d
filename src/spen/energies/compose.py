"""Energy, and energies made of energies: E = E^g + Σ_i E_i^l, weighted and smoothed by an entropy (Sec. 4.2 and 5)."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spen.arguments import require
from spen.parameters import Positive
from spen.protocols import Features, Formula
from spen.tensors import flat

Term = tuple[str, Callable[..., Tensor], bool]


class Energy(nn.Module, ABC):
    """E(y; F(x)): one number per example, low where y is a good answer for x.

    Subclass it and write ``forward``; energies then add up and scale: ``local + 0.5 * prior - other``, ``sum(terms)``.
    Each example is scored alone: no term may mix rows of the batch.
    """

    closed_form = False
    """True for cheap terms with exact second derivatives everywhere, such as an entropy. Strategies that
    approximate a black box still differentiate these exactly."""

    @property
    def knows_step(self) -> bool:
        """Set ``knows_step = True`` in a class to get the number of the step: ``forward(y, features, t)``.

        t (B,) holds integers, 0 … T − 1. A descent past the trained T repeats the last one.
        """
        return False

    @abstractmethod
    def forward(self, y: Tensor, features: Features) -> Tensor:  # (B, …), pytree -> (B,)
        """The energy of each example."""

    def __call__(self, y: Tensor, features: Features, t: Tensor | None = None) -> Tensor:
        if not self.knows_step:
            return super().__call__(y, features)
        if t is None:
            raise ValueError(
                f"the energy {type(self).__name__} knows the step and was called without one: call it as "
                "energy(y, features, t) with t of shape (B,), or train it with EndToEnd, whose descent counts the steps"
            )
        return super().__call__(y, features, t)

    def terms(self) -> Iterator[Term]:
        """Yield (name, function, closed_form) of every summand, so that errors can name it."""
        yield type(self).__name__, self, self.closed_form

    def formula(self, features: Features) -> Formula | None:
        """∇E written out for these features, for ``gradient=Written()``; None: autograd computes it."""
        return None

    def __add__(self, other: nn.Module) -> Sum:
        return Sum(self, other) if isinstance(other, nn.Module) else NotImplemented

    def __radd__(self, other: nn.Module | Literal[0]) -> Energy:  # a plain module, or the 0 that sum() begins with
        if isinstance(other, int) and other == 0:
            return self
        return Sum(other, self) if isinstance(other, nn.Module) else NotImplemented

    def __mul__(self, weight: float | Tensor) -> Scaled:
        return Scaled(self, weight) if isinstance(weight, Real | Tensor) else NotImplemented  # type: ignore[arg-type]

    __rmul__ = __mul__

    def __neg__(self) -> Scaled:
        return self * -1.0

    def __sub__(self, other: nn.Module) -> Sum:
        return Sum(self, Scaled(other, -1.0)) if isinstance(other, nn.Module) else NotImplemented

    def __rsub__(self, other: nn.Module) -> Sum:
        return Sum(other, -self) if isinstance(other, nn.Module) else NotImplemented


def terms_of(energy: nn.Module) -> list[Term]:
    """The named summands of any energy; a plain module is one summand."""
    if isinstance(energy, Energy):
        return list(energy.terms())
    return [(type(energy).__name__, energy, False)]


def changed_sum(energy: nn.Module) -> str | None:
    """The class of a part that overrides forward or has hooks, so may not be the sum of its ``terms``; or None."""
    for part in energy.modules():
        kinds = type(part).__mro__
        own = [next((k for k in kinds if name in vars(k)), Energy) for name in ("forward", "terms")]
        if not isinstance(part, Energy) or own[1] is Energy:
            continue
        if kinds.index(own[0]) < kinds.index(own[1]) or part._forward_hooks or part._forward_pre_hooks:
            return type(part).__name__
    return None


def evaluate(energy: Callable[..., Tensor], y: Tensor, features: Features, t: Tensor | None = None) -> Tensor:
    """E(y; features), or E(y; features, t) with the step t (B,) if the energy, or a term of it, has ``knows_step``."""
    if t is None or (isinstance(energy, nn.Module) and not knows_step(energy)):
        return energy(y, features)
    return energy(y, features, t)


def knows_step(energy: nn.Module) -> bool:
    """Whether the energy takes the number of the step."""
    return bool(getattr(energy, "knows_step", False))


def one_per_example(value: Tensor, y: Tensor, name: str) -> Tensor:
    """``value``, checked to be one number per example. A sum or mean over the batch would be added to each of them."""
    if value.shape != (y.shape[0],):
        raise ValueError(
            f"the term {name!r} of the energy returned shape {tuple(value.shape)} for a batch of {y.shape[0]}; each "
            f"term must return one number per example, shape ({y.shape[0]},): sum over everything but the batch"
        )
    return value


class Sum(Energy):
    """E(y; F) = Σ_k E_k(y; F), each summand under a name: ``Sum(local=unary, prior=network)``.

    Unnamed summands are called by their class. ``a + b`` is ``Sum(a, b)``, ``a - b`` is ``Sum(a, Scaled(b, -1))``;
    sums of sums are flat. Every summand must return one number per example.
    """

    def __init__(self, *energies: nn.Module, **named: nn.Module) -> None:
        super().__init__()
        self.parts: nn.ModuleDict
        parts = nn.ModuleDict()
        for energy in energies:
            _require_energy(energy, "a term")
            inner = energy.parts.items() if isinstance(energy, Sum) else [(_name(energy), energy)]
            for name, part in inner:
                parts[_unused(name, parts)] = part
        for name, energy in named.items():
            if "." in name:
                raise ValueError(f"a summand cannot be called {name!r}: names of modules have no dot")
            if hasattr(nn.ModuleDict, name):
                raise ValueError(
                    f"a summand cannot be called {name!r}, which torch's ModuleDict uses: name it otherwise"
                )
            _require_energy(energy, f"the term {name!r}")
            parts[_unused(name, parts)] = energy
        if not parts:
            raise ValueError("a Sum needs at least one energy")
        self.parts = parts

    @property
    def knows_step(self) -> bool:
        return any(knows_step(energy) for energy in self.parts.values())

    def forward(self, y: Tensor, features: Features, t: Tensor | None = None) -> Tensor:
        terms = (one_per_example(evaluate(term, y, features, t), y, name) for name, term in self.parts.items())
        return functools.reduce(operator.add, terms)

    def terms(self) -> Iterator[Term]:
        for name, energy in self.parts.items():
            inner = terms_of(energy)
            for inner_name, function, closed in inner:
                yield name if len(inner) == 1 else f"{name}.{inner_name}", function, closed


class Scaled(Energy):
    """w·E(y; F): ``0.5 * energy``, ``-energy``.

    The weight is a number or a tensor of one number, and fixed. ``learned=True`` learns it, positive by construction;
    an ``nn.Parameter`` is learned directly and may have either sign.
    """

    def __init__(self, energy: nn.Module, weight: float | Tensor, *, learned: bool = False) -> None:
        super().__init__()
        _require_energy(energy, "energy")
        self.energy = energy
        self.weight: Positive | Tensor | float
        if isinstance(weight, Tensor):
            _check_weight(weight, learned)
        if learned:
            self.weight = Positive(weight, learned=True, name="a learned weight")
        elif isinstance(weight, nn.Parameter):
            self.weight = weight
        elif isinstance(weight, Tensor):
            exact = weight.is_floating_point() or weight.is_complex()
            self.register_buffer("weight", weight.to(weight.dtype if exact else torch.get_default_dtype(), copy=True))
        else:
            self.weight = float(weight)

    @property
    def knows_step(self) -> bool:
        return knows_step(self.energy)

    def forward(self, y: Tensor, features: Features, t: Tensor | None = None) -> Tensor:
        return self._weight() * evaluate(self.energy, y, features, t)

    def terms(self) -> Iterator[Term]:
        for name, function, closed in terms_of(self.energy):
            yield name, self._scaled(function), closed

    def _scaled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda y, features, t=None: self._weight() * evaluate(function, y, features, t)

    def _weight(self) -> Tensor | float:
        weight = self.weight() if isinstance(self.weight, Positive) else self.weight
        return weight.reshape(()) if isinstance(weight, Tensor) else weight

    def extra_repr(self) -> str:
        if isinstance(self.weight, Positive):
            return ""
        return f"weight={self.weight.detach() if isinstance(self.weight, Tensor) else self.weight}"


class Linear(Energy):
    """E(y; s) = −⟨s, y⟩: local terms that prefer high scores.

    ``scores`` picks s out of the features; without it the features are the scores.
    """

    def __init__(self, scores: Callable[[Features], Tensor] | None = None) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, y: Tensor, features: Features) -> Tensor:
        scores = features if self.scores is None else self.scores(features)
        if scores.shape != y.shape and not _broadcasts(scores, y):
            raise ValueError(
                f"Linear has scores of shape {tuple(scores.shape)} for y of shape {tuple(y.shape)}: the scores need "
                "one row per example and as many dimensions as y"
            )
        return -flat(scores * y).sum(1)


def _broadcasts(scores: Tensor, y: Tensor) -> bool:
    """Whether the scores of each example are repeated to the shape of its y."""
    if scores.dim() != y.dim() or scores.shape[0] != y.shape[0]:
        return False
    return all(a in (1, b) for a, b in zip(scores.shape, y.shape, strict=True))


class NegativeEntropy(Energy):
    """−H(y) = Σ y log y: strong convexity for outputs that are probabilities (Sec. 4.2).

    ``over="simplex"`` sums y log y; ``over="box"`` adds (1 − y) log(1 − y) for every coordinate.
    """

    closed_form = True

    def __init__(self, over: Literal["simplex", "box"] = "simplex") -> None:
        super().__init__()
        if over not in ("simplex", "box"):
            raise ValueError(f'over must be "simplex" or "box", not {over!r}')
        self.over = over

    def forward(self, y: Tensor, features: Features) -> Tensor:
        total = _xlogx(y)
        if self.over == "box":
            total = total + _xlogx(1 - y)
        return flat(total).sum(1)

    def extra_repr(self) -> str:
        return f'over="{self.over}"'


class EntropySmoothed(Energy):
    """E(y; F) − τ Σ_i H(y_i): the energy that marginal inference minimises. Wraps an energy."""

    def __init__(
        self,
        energy: nn.Module,
        temperature: float | Tensor = 1.0,
        *,
        over: Literal["simplex", "box"] = "simplex",
        learned: bool = False,
    ) -> None:
        super().__init__()
        _require_energy(energy, "energy")
        self.energy = energy
        self.entropy = Scaled(NegativeEntropy(over), temperature, learned=learned)

    @property
    def knows_step(self) -> bool:
        return knows_step(self.energy)

    def forward(self, y: Tensor, features: Features, t: Tensor | None = None) -> Tensor:
        inner = one_per_example(evaluate(self.energy, y, features, t), y, type(self.energy).__name__)
        return inner + self.entropy(y, features)

    def terms(self) -> Iterator[Term]:
        yield from terms_of(self.energy)
        for _, function, closed in terms_of(self.entropy):
            yield "entropy", function, closed


def _require_energy(energy: Any, name: str) -> None:
    require(
        energy,
        nn.Module,
        name,
        "a module such as a subclass of spen.Energy",
        "write a class with a forward method, whose parameters can then be learned",
    )


def _check_weight(weight: Tensor, learned: bool) -> None:
    if weight.numel() != 1:
        raise ValueError(
            f"the weight of an energy must be one number, not a tensor of shape {tuple(weight.shape)}: weights of "
            "single examples or coordinates belong inside the energy"
        )
    if learned and isinstance(weight, nn.Parameter):
        raise ValueError(
            "an nn.Parameter is learned as it is, of either sign: leave learned=True out, or give the first weight as "
            "a number to learn a positive one"
        )
    if weight.requires_grad and not isinstance(weight, nn.Parameter):
        raise ValueError(
            "the weight of an energy is a tensor that requires a gradient but is no nn.Parameter, so no optimiser "
            "would find it: write nn.Parameter(weight), or weight.detach() for a fixed one"
        )


def _xlogx(y: Tensor) -> Tensor:
    # 1/y² would overflow below the square root of the smallest number, where y log y is zero in floating point.
    floor = torch.finfo(y.dtype).tiny ** 0.5
    return y * y.clamp_min(floor).log()


def _name(energy: nn.Module) -> str:
    while isinstance(energy, Scaled | EntropySmoothed):
        energy = energy.energy
    return type(energy).__name__.lower()


def _unused(name: str, taken: nn.ModuleDict) -> str:
    unique, count = name, 2
    while hasattr(taken, unique):  # a summand, or something that every ModuleDict has: an energy class Values
        unique, count = f"{name}{count}", count + 1
    return unique
