"""min_y E(y) − τH(y) by the bundle entropy method, and the derivative of its answer (Amos, Xu and Kolter 2017).

    bundle   E(y) ≥ max_i ⟨g_i, y⟩ + h_i       tangent planes of a convex energy at the points met so far
    step     y = argmin_y max_i (⟨g_i, y⟩ + h_i) − τH(y)
    dual     y = sigmoid(−Gᵀλ/τ) or softmax(−Gᵀλ/τ), λ on the simplex of planes, few and cheap

A handful of planes is enough where gradient descent takes dozens of steps. The energy must be convex in y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential, check_features, identity, outside_inference_mode
from spen.descent.trajectory import Trajectory
from spen.domains import Box, Simplex
from spen.energies.compose import EntropySmoothed, NegativeEntropy, knows_step, terms_of
from spen.gradients.implicit import Implicit
from spen.protocols import Domain
from spen.tensors import flat


class BundleEntropy(nn.Module):
    """A minimiser to put in the place of ``Minimizer``: the same call, the same Trajectory.

    The energy must be an ``EntropySmoothed`` of a convex energy; y has shape (B, n) over the ``Box`` and (B, …, n)
    over a ``Simplex``. An example is done when the gap between its energy and the bundle's lower bound is at most
    ``tolerance`` · (1 + |bound|); None takes 1e-8, or what the numbers of y can tell apart. The gradient is that of
    the minimiser, by the implicit function theorem, so it takes converged answers, knows nothing of earlier iterates,
    and leaves Init out.
    """

    def __init__(
        self,
        domain: Box | Simplex,
        planes: int = 50,
        *,
        tolerance: float | None = None,
        gradient: Implicit | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(domain, Box | Simplex):
            raise ValueError(f"the bundle entropy method works over a Box or a Simplex, not {type(domain).__name__}")
        if isinstance(domain, Box) and not domain.is_unit:
            raise ValueError(f"the bundle entropy method knows the entropy of a Box between 0 and 1, not of {domain}")
        if isinstance(domain, Simplex) and domain.dim != -1:
            raise ValueError(
                f"the bundle entropy method needs the classes in the last dimension, not in {domain.dim}: permute y"
            )
        if planes < 1 or (tolerance is not None and not tolerance > 0):
            raise ValueError(f"the bundle needs planes ≥ 1 and tolerance > 0, not {planes} and {tolerance}")
        self.domain = domain
        self.rule = _Planes(planes)
        self.tolerance = tolerance
        self.gradient = Implicit() if gradient is None else gradient

    def forward(self, energy: nn.Module, features: Any, start: Tensor) -> Trajectory:
        """Minimise ``energy`` from ``start`` (what Init returned, one row per example)."""
        check_features(features, start.shape[0])
        if torch.is_inference_mode_enabled():
            return outside_inference_mode(self._minimise, energy, features, start)
        return self._minimise(energy, features, start)

    def _minimise(self, energy: nn.Module, features: Any, start: Tensor) -> Trajectory:
        if knows_step(energy):
            raise ValueError(
                f"BundleEntropy minimises one function, and the energy {type(energy).__name__} knows the step: it is "
                "another function at every step. Use a Minimizer"
            )
        # In float32 the gap itself is known to a few units of the last place.
        tolerance = max(1e-8, 8 * torch.finfo(start.dtype).eps) if self.tolerance is None else self.tolerance
        bundle = _Bundle(self.domain, self.rule, _temperature(energy, self.domain), tolerance)
        potential = Potential.of(energy, features, identity)
        learns = (*potential.parameters(), *potential.feature_tensors())
        if torch.is_grad_enabled() and any(t.requires_grad for t in learns):
            # Implicit asks of a descent only that it can be run and says where each example arrived.
            path = self.gradient.run(cast(Descend, bundle), potential, start)
        else:
            with torch.no_grad():
                path = bundle(potential.detached(), start)
        return Trajectory.of(path, self.domain, self.rule.steps, potential, start, gradients=False)


class _Planes(nn.Module):
    """How many steps there may be; nothing to learn."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps


class _Dual(NamedTuple):
    y: Tensor  # (B, n)
    bound: Tensor  # (B,): the minimum of the bundle − τH, a lower bound of the minimum sought


@dataclass(frozen=True)
class _Bundle:
    """The loop over planes, in the shape in which ``Implicit`` wants a descent."""

    domain: Domain
    rule: _Planes
    temperature: float
    tolerance: float
    keep_gradients: bool = False
    stop: bool = True  # an example that has arrived stays where it is

    def __call__(self, potential: Potential, start: Tensor) -> Iterates:
        y = self.domain.output(self.domain.enter(start))
        # On a face of the domain the slope of the entropy is infinite: begin inside.
        y = torch.lerp(y, torch.full_like(y, 0.5 if isinstance(self.domain, Box) else 1 / y.shape[-1]), 1e-3)
        batch = y.shape[0]
        path = Iterates(
            steps_used=torch.full((batch,), self.rule.steps, device=y.device),
            converged=torch.zeros(batch, dtype=torch.bool, device=y.device),
        )
        convex, weigh = _without_entropy(potential)
        slopes: list[Tensor] = []
        offsets: list[Tensor] = []
        for t in range(self.rule.steps):
            slope, height = convex.gradient(y)
            path.energies.append(height + self.temperature * weigh(y, None))
            slopes.append(flat(slope).double())
            offsets.append(height.double() - flat(slope.double() * y.double()).sum(1))
            found = self._solve(torch.stack(slopes, 1), torch.stack(offsets, 1), y)
            moved = found.y.view_as(y).to(y.dtype)
            done = path.converged.view(-1, *[1] * (y.dim() - 1))
            y = torch.where(done, y, moved)
            path.outputs.append(y)
            with torch.no_grad():
                gap = potential(y).double() - found.bound
            small = self.tolerance * (1 + found.bound.abs())
            arrived = (gap <= small) & ~path.converged
            path.steps_used = path.steps_used.masked_fill(arrived, t + 1)
            path.converged = path.converged | arrived
            if bool(path.converged.all()):
                break
        return path

    def _solve(self, G: Tensor, h: Tensor, like: Tensor) -> _Dual:
        shape = like.shape[1:]
        if isinstance(self.domain, Box):
            return solve_dual(G, h, self.temperature, groups=None)
        return solve_dual(G, h, self.temperature, groups=shape[-1])


def solve_dual(G: Tensor, h: Tensor, temperature: float, groups: int | None) -> _Dual:  # (B, k, n), (B, k)
    """max_λ of q(λ) = ⟨h, λ⟩ − τ Σ log Z(−Gᵀλ/τ) over the simplex, by Newton with a logarithmic barrier, in double.

    ``groups`` is the size of each simplex of y; None means the box, where Z(a) = 1 + eᵃ for every coordinate.
    """
    batch, planes, _ = G.shape
    if planes == 1:
        ones = G.new_ones(batch, 1)
        return _Dual(_primal(G, ones, temperature, groups), _dual_value(G, h, ones, temperature, groups))
    lam = G.new_full((batch, planes), 1 / planes)
    barrier = 1.0
    while barrier > 1e-14:
        barrier *= 0.1
        for _ in range(12):
            lam, decrement = _newton(G, h, lam, temperature, groups, barrier)
            if bool((decrement < 1e-3 * barrier).all()):
                break
    return _Dual(_primal(G, lam, temperature, groups), _dual_value(G, h, lam, temperature, groups))


def _newton(
    G: Tensor, h: Tensor, lam: Tensor, temperature: float, groups: int | None, barrier: float
) -> tuple[Tensor, Tensor]:
    """One damped Newton step of min −q(λ) − μ Σ log λ on Σλ = 1; also its decrement."""
    y = _primal(G, lam, temperature, groups)
    # −q has gradient −(h + G y) and Hessian G V Gᵀ/τ, V the variance of y.
    gradient = -(h + (G @ y[..., None]).squeeze(-1)) - barrier / lam
    scaled = _variance(G, y, groups)
    hessian = G @ scaled.transpose(1, 2) / temperature + torch.diag_embed(barrier / lam.square())
    # In the variables λ·e the barrier's Hessian is μI: well conditioned however small λ is.
    hessian = lam[:, :, None] * hessian * lam[:, None, :]
    kkt = torch.cat([hessian, lam[:, :, None]], 2)
    last = torch.cat([lam, torch.zeros_like(lam[:, :1])], 1)[:, None]
    right = torch.cat([-lam * gradient, torch.zeros_like(lam[:, :1])], 1)
    step = lam * torch.linalg.solve(torch.cat([kkt, last], 1), right)[:, :-1]
    decrement = -(gradient * step).sum(1)
    reach = torch.where(step < 0, -lam / step, torch.inf).amin(1)
    size = torch.minimum(torch.ones_like(reach), 0.95 * reach)

    def value(point: Tensor) -> Tensor:
        return -_dual_value(G, h, point, temperature, groups) - barrier * point.log().sum(1)

    here = value(lam)
    for _ in range(25):
        there = value(lam + size[:, None] * step)
        short = there <= here - 0.1 * size * decrement + 1e-15 * here.abs()
        if bool(short.all()):
            break
        size = torch.where(short, size, 0.5 * size)
    moved = lam + torch.where(short, size, 0.0)[:, None] * step
    return moved / moved.sum(1, keepdim=True), torch.where(short, decrement.abs(), 0.0)


def _primal(G: Tensor, lam: Tensor, temperature: float, groups: int | None) -> Tensor:
    a = -(lam[:, None] @ G).squeeze(1) / temperature
    if groups is None:
        return torch.sigmoid(a)
    return torch.softmax(a.unflatten(1, (-1, groups)), -1).flatten(1)


def _dual_value(G: Tensor, h: Tensor, lam: Tensor, temperature: float, groups: int | None) -> Tensor:
    a = -(lam[:, None] @ G).squeeze(1) / temperature
    logs = F.softplus(a) if groups is None else torch.logsumexp(a.unflatten(1, (-1, groups)), -1)
    return (h * lam).sum(1) - temperature * logs.sum(1)


def _variance(G: Tensor, y: Tensor, groups: int | None) -> Tensor:
    """V G of each plane, V = diag(y(1 − y)) or diag(y) − yyᵀ of each simplex."""
    if groups is None:
        return G * (y * (1 - y))[:, None]
    parts, p = G.unflatten(2, (-1, groups)), y.unflatten(1, (-1, groups))[:, None]
    return (p * (parts - (p * parts).sum(-1, keepdim=True))).flatten(2)


def _temperature(energy: nn.Module, domain: Box | Simplex) -> float:
    over = "box" if isinstance(domain, Box) else "simplex"
    if not isinstance(energy, EntropySmoothed):
        raise ValueError(
            "the bundle entropy method minimises E − τH, so it needs an EntropySmoothed energy, "
            f"not {type(energy).__name__}"
        )
    inner = energy.entropy.energy
    if not isinstance(inner, NegativeEntropy) or inner.over != over:
        raise ValueError(f'the entropy of the energy must be over="{over}", as the domain is')
    return float(energy.entropy._weight())


def _without_entropy(potential: Potential) -> tuple[Potential, NegativeEntropy]:
    energy = cast(EntropySmoothed, potential.energy)
    inner = cast(NegativeEntropy, energy.entropy.energy)
    for name, _, closed in terms_of(energy.energy):
        if closed:
            raise ValueError(f"the energy holds a second closed-form term, {name}: one entropy is enough")
    return replace(potential, energy=energy.energy), inner
