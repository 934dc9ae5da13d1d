"""min_y E(y) − τH(y) by the bundle entropy method, and the derivative of its answer (Amos, Xu and Kolter 2017).

    bundle   E(y) ≥ max_i ⟨g_i, y⟩ + h_i       tangent planes of a convex energy at the iterates y_0 … y_t
    step     y_{t+1} = argmin_y max_i (⟨g_i, y⟩ + h_i) − τH(y)
    dual     y_{t+1} = sigmoid(−Gᵀλ/τ) or softmax(−Gᵀλ/τ), λ on the simplex of planes

A handful of planes is enough where gradient descent takes dozens of steps. The energy must be convex in y.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.descent.potential import Potential
from spen.descent.trajectory import Trajectory
from spen.domains import Box, Simplex
from spen.energies.compose import EntropySmoothed, NegativeEntropy, Scaled, knows_step, terms_of
from spen.gradients.implicit import Implicit
from spen.minimizer import Minimizer
from spen.protocols import State, StepRule
from spen.tensors import flat


class BundleEntropy(nn.Module):
    """A minimiser to use instead of ``Minimizer``: the same call, the same Trajectory.

    The energy must be an ``EntropySmoothed`` of a convex energy; y has shape (B, n) over the ``Box`` and (B, …, n)
    over a ``Simplex``. An example has converged when the gap between its energy and the lower bound of the bundle is
    at most ``tolerance`` · (1 + |bound|); None means 1e-8, or 8 units of the last place of y's type. The gradient is
    that of the minimiser by the implicit function theorem. So every example must converge, the loss may only depend on
    the last iterate, and Init gets no gradient.
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
        self.planes = planes
        self.tolerance = tolerance
        self.gradient = Implicit() if gradient is None else gradient

    def forward(self, energy: nn.Module, features: Any, start: Tensor) -> Trajectory:
        """Minimise ``energy`` from ``start`` (what Init returned, one row per example)."""
        temperature = _temperature(energy, self.domain)
        # In float32 the gap itself is known to a few units of the last place.
        tolerance = max(1e-8, 8 * torch.finfo(start.dtype).eps) if self.tolerance is None else self.tolerance
        domain: Box | Simplex = Box("logits") if isinstance(self.domain, Box) else Simplex("logits")
        bundle = _Bundle(domain, self.planes, Potential.of(energy, features), temperature, tolerance)
        # Init returns logits, except for a projected box.
        projected = isinstance(self.domain, Box) and self.domain.update == "projected"
        logits = torch.logit(start, 1e-3) if projected else start
        return Minimizer(domain, bundle, self.gradient, bundle)(energy, features, logits)


class _Bundle(StepRule):
    """The planes of one minimisation: its step rule and its convergence test, which shares the lower bound."""

    bound: Tensor  # (B,): the minimum of the bundle − τH, a lower bound of the minimum of E − τH
    value: Tensor  # (B,): E − τH at the latest iterate

    def __init__(
        self, domain: Box | Simplex, planes: int, potential: Potential, temperature: float, tolerance: float
    ) -> None:
        super().__init__()
        self.steps = planes
        self.domain = domain
        self.potential = potential
        self.temperature = temperature
        self.tolerance = tolerance
        self.entropy = Potential.of(Scaled(NegativeEntropy(_over(domain)), temperature), None)

    # The state is (G, h, g): slopes and offsets of the planes, and the latest gradient for ``recall``.
    def begin(self, z: Tensor) -> State:
        self.value = self.potential(self.domain.output(z))
        planes = flat(z)[:, None, :].double()[:, :0]
        return planes, planes.sum(2), torch.zeros_like(z)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        y = self.domain.output(z)
        entropy_slope, entropy = self.entropy.gradient(y)  # −τH, which the planes leave out
        slope = flat(gradient - entropy_slope).double()
        offset = (self.value - entropy).double() - (slope * flat(y)).sum(1)
        G, h = torch.cat([state[0], slope[:, None]], 1), torch.cat([state[1], offset[:, None]], 1)
        lam, self.bound = solve_dual(G, h, self.temperature, None if isinstance(self.domain, Box) else y.shape[-1])
        moved = _logits(G, lam, self.temperature).view_as(z).to(z.dtype)
        return z - moved, (G, h, gradient)

    def recall(self, before: State, after: State) -> Tensor:
        return after[-1]

    def converged(self, before: Tensor, after: Tensor) -> Tensor:
        self.value = self.potential(after)
        return self.value.double() - self.bound <= self.tolerance * (1 + self.bound.abs())


def solve_dual(
    G: Tensor, h: Tensor, temperature: float, groups: int | None
) -> tuple[Tensor, Tensor]:  # (B, k, n), (B, k) -> (B, k), (B,)
    """(λ, q(λ)), the maximum of q(λ) = ⟨h, λ⟩ − τ Σ log Z(−Gᵀλ/τ) over the simplex, by Newton with a log barrier.

    ``groups`` is the size of each simplex of y; None means the box, where Z(a) = 1 + eᵃ for every coordinate.
    """
    batch, planes, _ = G.shape
    lam = G.new_full((batch, planes), 1 / planes)
    barrier = 1.0 if planes > 1 else 0.0
    while barrier > 1e-14:
        barrier *= 0.1
        for _ in range(12):
            lam, decrement = _newton(G, h, lam, temperature, groups, barrier)
            if bool((decrement < 1e-3 * barrier).all()):
                break
    return lam, _dual_value(G, h, lam, temperature, groups)


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


def _logits(G: Tensor, lam: Tensor, temperature: float) -> Tensor:  # (B, n): −Gᵀλ/τ
    return -(lam[:, None] @ G).squeeze(1) / temperature


def _primal(G: Tensor, lam: Tensor, temperature: float, groups: int | None) -> Tensor:
    a = _logits(G, lam, temperature)
    if groups is None:
        return torch.sigmoid(a)
    return torch.softmax(a.unflatten(1, (-1, groups)), -1).flatten(1)


def _dual_value(G: Tensor, h: Tensor, lam: Tensor, temperature: float, groups: int | None) -> Tensor:
    a = _logits(G, lam, temperature)
    logs = F.softplus(a) if groups is None else torch.logsumexp(a.unflatten(1, (-1, groups)), -1)
    return (h * lam).sum(1) - temperature * logs.sum(1)


def _variance(G: Tensor, y: Tensor, groups: int | None) -> Tensor:
    """V G of each plane, V = diag(y(1 − y)) or diag(y) − yyᵀ of each simplex."""
    if groups is None:
        return G * (y * (1 - y))[:, None]
    parts, p = G.unflatten(2, (-1, groups)), y.unflatten(1, (-1, groups))[:, None]
    return (p * (parts - (p * parts).sum(-1, keepdim=True))).flatten(2)


def _over(domain: Box | Simplex) -> Literal["box", "simplex"]:
    return "box" if isinstance(domain, Box) else "simplex"


def _temperature(energy: nn.Module, domain: Box | Simplex) -> float:
    """τ of an energy that the method can minimise; others are refused."""
    if knows_step(energy):
        raise ValueError(
            f"BundleEntropy minimises one function, and the energy {type(energy).__name__} knows the step: it is "
            "another function at every step. Use a Minimizer"
        )
    if not isinstance(energy, EntropySmoothed):
        raise ValueError(
            "the bundle entropy method minimises E − τH, so it needs an EntropySmoothed energy, "
            f"not {type(energy).__name__}"
        )
    if energy.entropy.energy.over != _over(domain):
        raise ValueError(f'the entropy of the energy must be over="{_over(domain)}", as the domain is')
    for name, _, closed in terms_of(energy.energy):
        if closed:
            raise ValueError(f"the energy holds a second closed-form term, {name}: one entropy is enough")
    return float(energy.entropy._weight())
