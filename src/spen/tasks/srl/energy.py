"""E(y; F(x)) of the appendix: local scores, five global terms, soft constraints, entropy.

Label 0 is the empty one. The mass of an arc is z = Σ_{k ≠ 0} y[k], its probability of a role. A predicate's label
histogram is w_p = Σ_a y_p[a, 1:]. `MaskedArcs` sets invalid arcs to the empty label before the other energies read y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spen.energies import Energy, NonNegativeLinear, SoftNand, Softplus
from spen.energies.compose import Term, terms_of
from spen.protocols import Formula
from spen.tasks.srl.local import Scored

SMALL = 0.1
"""Mass added to the denominator of an average, so that its gradient is finite where a predicate has no mass."""


def mass(y: Tensor) -> Tensor:  # (B, n, K, A) → (B, n, K)
    """z = Σ_{k ≠ 0} y[k]."""
    return y[..., 1:].sum(-1)


class MaskedArcs(Energy):
    """E(ŷ; F) with ŷ = y on valid arcs and the empty label on the others, which have no gradient. Wraps an energy.

    Init starts invalid arcs at the empty label, and without a gradient they stay there.
    """

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        return self.energy(_masked(y, features), features)

    def terms(self) -> Iterator[Term]:
        for name, function, closed in terms_of(self.energy):
            yield name, _on_masked(function), closed

    def formula(self, features: Scored) -> Formula | None:
        from spen.tasks.srl.gradient_formulas import Bound, is_written  # it imports every term of this file

        return Bound(self, features) if is_written(self) else None


def _on_masked(function: Callable[[Tensor, Scored], Tensor]) -> Callable[[Tensor, Scored], Tensor]:
    return lambda y, features: function(_masked(y, features), features)


def _masked(y: Tensor, features: Scored) -> Tensor:
    empty = (torch.arange(y.shape[-1], device=y.device) == 0).to(y.dtype)
    return torch.where(features.mask[..., None], y, empty)


class Network(nn.Module):
    """⟨w, softplus(W u + V c + b)⟩: a two-layer network on u, a function of y, and c, which does not depend on y.

    ``convex=True`` makes it convex in u: w ≥ 0, and a linear term ⟨d, u⟩ of either sign. The last layer starts small,
    because training shrinks a term that starts large to zero. There is no output bias, as a constant has no gradient.
    """

    def __init__(
        self, moving: int, context: int, *, hidden: int = 50, temperature: float = 2.0, convex: bool = False
    ) -> None:
        super().__init__()
        self.moving: nn.Linear | NonNegativeAffine = nn.Linear(moving, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.bend = Softplus(temperature)
        self.last: nn.Module
        if convex:
            self.last = NonNegativeLinear(hidden, 1)
            self.direct: nn.Linear | None = nn.Linear(moving, 1, bias=False)
            nn.init.zeros_(self.direct.weight)
        else:
            self.last = nn.Linear(hidden, 1, bias=False)
            nn.init.normal_(self.last.weight, std=0.3 * hidden**-0.5)
            self.direct = None

    def forward(self, u: Tensor, c: Tensor | None = None) -> Tensor:  # (…, moving), (…, context) → (…)
        total = self.moving(u)
        if self.context is not None:
            total = total + self.context(c)
        value = self.last(self.bend(total))
        if self.direct is not None:
            value = value + self.direct(u)
        return value.squeeze(-1)

    def restrict(self) -> None:
        """Keep the weights on u ≥ 0 as well: the energy of an input-convex network without its linear term."""
        self.moving, self.direct = NonNegativeAffine(self.moving.in_features, self.moving.out_features), None


class NonNegativeAffine(NonNegativeLinear):
    """W u + b with W ≥ 0."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.in_features, self.out_features = inputs, outputs
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z) + self.bias


class ArgumentSet(Energy):
    """Σ_p MLP([Σ_a z_p[a] f_a / Σ_a z_p[a];  f_p]): which arguments go together with which predicate (term 1).

    The convex version divides by the number of candidates, since a ratio of two functions of y is not convex.
    """

    def __init__(self, words: int, *, hidden: int = 50, convex: bool = False) -> None:
        super().__init__()
        self.network = Network(words, words, hidden=hidden, convex=convex)
        self.convex = convex

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        average = _average(mass(y), features.argument, features.mask, self.convex)
        return (self.network(average, features.predicate) * features.predicate_mask).sum(1)


class LabelHistogram(Energy):
    """Σ_p MLP([w_p; f_p]): which roles a predicate takes, and how many of each (term 2)."""

    def __init__(self, roles: int, words: int, *, hidden: int = 50, convex: bool = False) -> None:
        super().__init__()
        self.network = Network(roles - 1, words, hidden=hidden, convex=convex)

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        histogram = y[..., 1:].sum(2)
        return (self.network(histogram, features.predicate) * features.predicate_mask).sum(1)


class ArgumentCount(Energy):
    """α Σ_p (Σ_k w_p[k] − ⟨u, f_p⟩ − b)²: how many arguments a predicate should have (term 3).

    The scale α ≥ 0 is learned and starts small; with α = 1 it is the paper's term.
    """

    def __init__(self, words: int, *, scale: float = 0.1, usual: float = 2.5) -> None:
        super().__init__()
        self.expected = nn.Linear(words, 1)
        nn.init.zeros_(self.expected.weight)
        nn.init.constant_(self.expected.bias, usual)
        self.log_scale = nn.Parameter(torch.tensor(scale).log())

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        missing = mass(y).sum(2) - self.expected(features.predicate).squeeze(-1)
        return self.log_scale.exp() * (missing.square() * features.predicate_mask).sum(1)


class LabelCoherence(Energy):
    """MLP(mean_p w_p): which roles a sentence as a whole has (term 4)."""

    def __init__(self, roles: int, *, hidden: int = 50, convex: bool = False) -> None:
        super().__init__()
        self.network = Network(roles - 1, 0, hidden=hidden, convex=convex)

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        histogram = y[..., 1:].sum((1, 2))  # padded predicates have no mass
        return self.network(histogram / features.predicate_mask.sum(1, keepdim=True).clamp(min=1))


class TopicalCoherence(Energy):
    """MLP(Σ_r s_r f_r / Σ_r s_r) over all arcs r of the sentence, s_r their mass (term 5)."""

    def __init__(self, arc: int, *, hidden: int = 50, convex: bool = False) -> None:
        super().__init__()
        self.network = Network(arc, 0, hidden=hidden, convex=convex)
        self.convex = convex

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        weights, arcs = mass(y).flatten(1)[:, None], features.arc.flatten(1, 2)[:, None]
        return self.network(_average(weights, arcs, features.mask.flatten(1)[:, None], self.convex).squeeze(1))


@dataclass(frozen=True)
class OverlappingPairs:
    """(z_p[a], z_p[b], 1) for candidates a < b of a predicate that overlap."""

    def __call__(self, y: Tensor, features: Scored) -> tuple[Tensor, Tensor, Tensor]:
        z = mass(y)
        return z[..., :, None], z[..., None, :], features.conflicts.triu(1).to(y.dtype)


@dataclass(frozen=True)
class RepeatedPairs:
    """(y_p[a, k], y_p[b, k], 1) for candidates a < b of a predicate and core roles k."""

    core: tuple[int, ...]

    def __call__(self, y: Tensor, features: Scored) -> tuple[Tensor, Tensor, Tensor]:
        of = pick(y, self.core)
        both = features.mask[..., :, None] & features.mask[..., None, :]
        return of[..., :, None, :], of[..., None, :, :], both.triu(1).to(y.dtype)[..., None]


def pick(y: Tensor, roles: Sequence[int]) -> Tensor:  # (…, A) → (…, len(roles))
    """y[..., roles]; neighbours as a view, which needs no index on the device and no scatter in its backward."""
    first = roles[0] if roles else 0
    if list(roles) == list(range(first, first + len(roles))):
        return y[..., first : first + len(roles)]
    return y[..., list(roles)]


def overlap_constraint(*, weight: float = 1.0, temperature: float = 20.0) -> SoftNand:
    """α Σ_p Σ_{a<b overlapping} SoftPlus(z_p[a] + z_p[b] − 1): arguments of a predicate do not overlap."""
    return SoftNand(OverlappingPairs(), weight=weight, temperature=temperature)


def repeat_constraint(core: Sequence[int], *, weight: float = 1.0, temperature: float = 20.0) -> SoftNand:
    """α Σ_p Σ_{k core} Σ_{a<b} SoftPlus(y_p[a, k] + y_p[b, k] − 1): a core role goes to one argument.

    Over the core roles and a predicate's own candidates alone: (B, n, K, K, core) numbers.
    """
    return SoftNand(RepeatedPairs(tuple(core)), weight=weight, temperature=temperature)


def _average(
    weights: Tensor,  # (B, n, K)
    values: Tensor,  # (B, n, K, D)
    mask: Tensor,  # (B, n, K) bool
    fixed: bool,
) -> Tensor:  # (B, n, D)
    """Σ w v / (Σ w + small), or Σ w v / K where the denominator must not depend on y."""
    total = mask.sum(-1).clamp(min=1).to(weights.dtype) if fixed else weights.sum(-1) + SMALL
    return torch.einsum("bnk,bnkd->bnd", weights, values) / total[..., None]
