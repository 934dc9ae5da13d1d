"""∇E of the role-labelling energy, written out: the descent then needs one derivative of a formula, not two of E.

Double backprop through the terms takes hundreds of small operations per step of the descent. Here everything that does
not depend on y (projections of F(x), masks, weights of pairs) is computed once per descent, and a step is the formula
of ∇E alone. Tests compare it with autograd, term by term and through a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, singledispatch
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spen.energies import EntropySmoothed, Linear, SoftNand, Sum
from spen.energies.compose import Scaled
from spen.tasks.srl.contextual import ArcPairs, take
from spen.tasks.srl.energy import (
    SMALL,
    ArgumentCount,
    ArgumentSet,
    LabelCoherence,
    LabelHistogram,
    MaskedArcs,
    Network,
    OverlappingPairs,
    RepeatedPairs,
    TopicalCoherence,
    pick,
)
from spen.tasks.srl.local import Scored


class Point(NamedTuple):
    """y as the terms read it: every sum that more than one of them needs."""

    y: Tensor  # (B, n, K, A), invalid arcs at the empty label
    roles: Tensor  # (B, n, K, A − 1)
    mass: Tensor  # (B, n, K): z
    histogram: Tensor  # (B, n, A − 1): w_p


class Slope(NamedTuple):
    """A term's value and its derivatives by the parts of a Point; None where it does not depend on one."""

    value: Tensor | None  # (B,), without a graph; None for 0
    roles: Tensor | None = None  # (B, n, K, A − 1)
    mass: Tensor | None = None  # (B, n, K)
    histogram: Tensor | None = None  # (B, n, A − 1), or broadcast to it


Term = Callable[[Point], Slope]


def is_written(energy: nn.Module) -> bool:
    """Has every term of the energy a formula here?"""
    if not isinstance(energy, MaskedArcs):
        return False
    inner, temperature = _smoothing(energy)
    return temperature is not None and isinstance(inner, Sum) and all(_known(part) for part in inner.parts.values())


def _smoothing(energy: MaskedArcs) -> tuple[nn.Module, float | None]:
    """The energy without its entropy, and τ; None where τ is learned."""
    inner = energy.energy
    if not isinstance(inner, EntropySmoothed):
        return inner, 0.0
    assert isinstance(inner.entropy, Scaled)
    weight = inner.entropy.weight
    return inner.energy, weight if isinstance(weight, float) else None


class Bound:
    """(∇E, E) of a `MaskedArcs` energy for the features of one batch."""

    def __init__(self, energy: nn.Module, features: Scored) -> None:
        assert isinstance(energy, MaskedArcs)
        inner, temperature = _smoothing(energy)
        assert isinstance(inner, Sum)
        self.temperature = temperature or 0.0
        self.valid = features.mask[..., None]
        self.empty = torch.zeros(features.scores.shape[-1], dtype=features.scores.dtype, device=features.scores.device)
        self.empty[0] = 1
        self.scores = features.scores
        self.local = any(isinstance(part, Linear) for part in inner.parts.values())
        self.terms = [bind(part, features) for part in inner.parts.values() if not isinstance(part, Linear)]

    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:  # (B, n, K, A) → (B, n, K, A), (B,)
        masked = torch.where(self.valid, y, self.empty)
        roles = masked[..., 1:]
        point = Point(masked, roles, roles.sum(-1), roles.sum(2))
        slopes = [term(point) for term in self.terms]
        by_mass = _total([s.mass for s in slopes])
        by_histogram = _total([s.histogram for s in slopes])
        by_roles = _total(
            [
                *(s.roles for s in slopes),
                None if by_mass is None else by_mass[..., None],
                None if by_histogram is None else by_histogram[:, :, None],
            ]
        )
        gradient, value = self._local(masked)
        if by_roles is not None:
            moved = torch.nn.functional.pad(by_roles.expand_as(roles), (1, 0))
            gradient = moved if gradient is None else gradient + moved
        if gradient is None:
            raise ValueError("the energy does not depend on y: it has no gradient to descend")
        total = _total([value, *(s.value for s in slopes)])
        assert total is not None
        return gradient * self.valid, total.detach()

    def _local(self, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """−⟨s, y⟩ + τ Σ y log y and its slope."""
        gradient, value = None, None
        if self.temperature:
            floor = torch.finfo(y.dtype).tiny ** 0.5
            log = y.clamp_min(floor).log()
            # Below the floor y log y is continued by a straight line, whose slope lacks the 1.
            gradient = self.temperature * (log + (y > floor))
            value = self.temperature * (y.detach() * log.detach()).flatten(1).sum(1)
        if self.local:
            linear = -(self.scores.detach() * y.detach()).flatten(1).sum(1)
            gradient = -self.scores if gradient is None else gradient - self.scores
            value = linear if value is None else value + linear
        return gradient, value


@singledispatch
def bind(term: nn.Module, features: Scored) -> Term:
    """The term for the features of one batch, with all that does not depend on y computed."""
    raise TypeError(f"{type(term).__name__} has no written gradient")


def _known(term: nn.Module) -> bool:
    if isinstance(term, SoftNand):
        return isinstance(term.pairs, OverlappingPairs | RepeatedPairs)
    return isinstance(term, Linear) or bind.dispatch(type(term)) is not bind.dispatch(object)


@bind.register
def _(term: ArgumentSet, features: Scored) -> Term:
    return _averaged(
        term.network,
        features.argument,
        features.mask,
        None if term.network.context is None else term.network.context(features.predicate),
        features.predicate_mask,
        fixed=term.convex,
    )


@bind.register
def _(term: TopicalCoherence, features: Scored) -> Term:
    every = torch.ones_like(features.predicate_mask[:, :1])
    arcs, mask = features.arc.flatten(1, 2)[:, None], features.mask.flatten(1)[:, None]
    inner = _averaged(term.network, arcs, mask, None, every, fixed=term.convex)
    shape = features.mask.shape

    def slope(point: Point) -> Slope:
        found = inner(point._replace(mass=point.mass.flatten(1)[:, None]))
        assert found.mass is not None
        return found._replace(mass=found.mass.reshape(shape))

    return slope


def _averaged(
    network: Network,
    values: Tensor,  # (B, n, K, D)
    mask: Tensor,  # (B, n, K) bool
    context: Tensor | None,  # (B, n, hidden)
    counted: Tensor,  # (B, n) bool: whose networks count
    *,
    fixed: bool,
) -> Term:
    """Σ_p N(ū_p), ū = Σ_a z_a v_a / (Σ_a z_a + small): W ū is an average of W v_a, so v is projected once.

    d/dz_a = ⟨h, W v_a − W ū⟩ / (Σ z + small) with h = N'(ū); with a fixed denominator the second part is absent.
    """
    projected = nn.functional.linear(values, network.moving.weight)  # (B, n, K, hidden)
    across = projected.transpose(-1, -2)
    shift = network.moving.bias if context is None else context + network.moving.bias
    outer = _last(network) * counted[..., None]
    direct = None if network.direct is None else network.direct(values).squeeze(-1) * counted[..., None]
    count = mask.sum(-1, keepdim=True).clamp(min=1).to(values.dtype) if fixed else None

    def slope(point: Point) -> Slope:
        z = point.mass
        total = count if count is not None else z.sum(-1, keepdim=True) + SMALL
        average = (z[..., None, :] @ projected).squeeze(-2) / total
        value, h = _bend(network, average + shift, outer)
        along = (h[..., None, :] @ across).squeeze(-2)
        if count is None:
            along = along - (h * average).sum(-1, keepdim=True)
        by_mass = along / total
        value = value.flatten(1).sum(1)
        if direct is not None:
            # The linear term reads the same average.
            mean = (z * direct).sum(-1, keepdim=True) / total
            by_mass = by_mass + (direct if count is not None else direct - mean) / total
            value = value + mean.detach().flatten(1).sum(1)
        return Slope(value, mass=by_mass)

    return slope


@bind.register
def _(term: LabelHistogram, features: Scored) -> Term:
    network = term.network
    assert network.context is not None
    shift = network.context(features.predicate) + network.moving.bias
    outer = _last(network) * features.predicate_mask[..., None]
    direct = None if network.direct is None else network.direct.weight * features.predicate_mask[..., None]

    def slope(point: Point) -> Slope:
        total = nn.functional.linear(point.histogram, network.moving.weight) + shift
        value, h = _bend(network, total, outer)
        by_histogram, value = h @ network.moving.weight, value.flatten(1).sum(1)
        if direct is not None:
            by_histogram = by_histogram + direct
            value = value + (direct.detach() * point.histogram.detach()).flatten(1).sum(1)
        return Slope(value, histogram=by_histogram)

    return slope


@bind.register
def _(term: ArgumentCount, features: Scored) -> Term:
    expected = term.expected(features.predicate).squeeze(-1)
    scale = term.log_scale.exp() * features.predicate_mask

    def slope(point: Point) -> Slope:
        scaled = scale * (missing := point.mass.sum(2) - expected)
        value = (scaled.detach() * missing.detach()).sum(1)
        return Slope(value, mass=(2 * scaled)[..., None].expand_as(point.mass))

    return slope


@bind.register
def _(term: LabelCoherence, features: Scored) -> Term:
    network, outer = term.network, _last(term.network)
    count = features.predicate_mask.sum(1, keepdim=True).clamp(min=1).to(features.scores.dtype)

    def slope(point: Point) -> Slope:
        mean = point.histogram.sum(1) / count
        value, h = _bend(network, network.moving(mean), outer)
        by_mean = h @ network.moving.weight
        if network.direct is not None:
            by_mean = by_mean + network.direct.weight
            value = value + network.direct(mean).detach().squeeze(-1)
        return Slope(value, histogram=(by_mean / count)[:, None].expand_as(point.histogram))

    return slope


@bind.register
def _(term: SoftNand, features: Scored) -> Term:
    weight, beta, pairs = term.weight(), term.temperature, term.pairs
    if isinstance(pairs, OverlappingPairs):
        # Over ordered pairs, each of them counted half.
        conflicts = features.conflicts.to(features.scores.dtype)

        def overlap(point: Point) -> Slope:
            z = point.mass
            total = z[..., :, None] + (z - 1)[..., None, :]
            value = _pair_value(total, conflicts, weight, beta)
            return Slope(value, mass=weight * (torch.sigmoid(beta * total) * conflicts).sum(-1))

        return overlap
    if isinstance(pairs, RepeatedPairs):
        core, mask = pairs.core, features.mask
        eye = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        both = (mask[..., :, None] & mask[..., None, :] & ~eye).to(features.scores.dtype)[..., None]

        def repeat(point: Point) -> Slope:
            of = pick(point.y, core)
            total = of[..., :, None, :] + (of - 1)[..., None, :, :]
            value = _pair_value(total, both, weight, beta)
            by_core = weight * (torch.sigmoid(beta * total) * both).sum(-2)
            return Slope(value, roles=_put(by_core, core, point.roles))

        return repeat
    raise TypeError("only the pairs of role labelling have a written gradient")


@bind.register
def _(term: ArcPairs, features: Scored) -> Term:
    mask = features.mask.flatten(1)
    # Pairs of valid arcs alone: with padding a training step takes 1.7 times as long. An exported program keeps the
    # padding, because its sizes must not depend on the data.
    most = mask.shape[1] if torch.compiler.is_compiling() else max(mask.sum(1).tolist(), default=0)
    place = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # valid arcs first
    weights = term.weights(features, place)
    back = weights.transpose(-1, -2)

    def slope(point: Point) -> Slope:
        roles = point.roles.flatten(1, 2)
        taken = take(roles, place)
        left, right = term.left(taken), term.right(taken)
        by_left = (weights @ term.by_head(right)).transpose(1, 2).flatten(2)
        by_right = (back @ term.by_head(left)).transpose(1, 2).flatten(2)
        value = -0.5 * (by_left.detach() * left.detach()).flatten(1).sum(1)
        by_taken = -0.5 * (by_left @ term.left.weight + by_right @ term.right.weight)
        by_roles = torch.zeros_like(roles).scatter(1, place[..., None].expand_as(by_taken), by_taken)
        return Slope(value, roles=by_roles.view_as(point.roles))

    return slope


def _last(network: Network) -> Tensor:  # (1, hidden)
    """w of ⟨w, softplus(·)⟩."""
    weight = network.last.weight
    assert isinstance(weight, Tensor)
    return weight


def _bend(network: Network, total: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:  # (…, hidden) → (…), (…, hidden)
    """⟨w, softplus(total)⟩ without a graph, and its derivative w ∘ σ(β total) by total."""
    value = (outer.detach() * network.bend(total.detach())).sum(-1)
    return value, outer * torch.sigmoid(network.bend.temperature * total)


def _pair_value(total: Tensor, counted: Tensor, weight: Tensor, beta: float) -> Tensor:  # → (B,)
    penalty = nn.functional.softplus(total.detach(), beta=beta) * counted
    return 0.5 * weight.detach() * penalty.flatten(1).sum(1)


def _put(values: Tensor, core: tuple[int, ...], like: Tensor) -> Tensor:
    """Values for core roles → zeros elsewhere, over the roles without the empty one."""
    first, size = core[0] - 1, like.shape[-1]
    if list(core) == list(range(core[0], core[0] + len(core))):
        return nn.functional.pad(values, (first, size - first - len(core)))
    return torch.zeros_like(like).index_copy(-1, torch.tensor(core, device=like.device) - 1, values)


def _total(values: list[Tensor | None]) -> Tensor | None:
    found = [value for value in values if value is not None]
    return reduce(torch.add, found) if found else None
