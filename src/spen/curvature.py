"""η·(1 − d)·λ_max < 2(1 + β): a descent with rates η, momentum β and dampening d is stable where this holds.

λ_max is the largest eigenvalue, in absolute value, of the Jacobian of the gradient that the descent follows, by power
iteration on Hessian-vector products: H over the reals and ``through_logits``, H·∂y/∂z where z are logits of y, and H
between the directions in which y may move where updates are projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spen.descent.potential import Potential, identity
from spen.domains import Simplex
from spen.gradients.second_order import exact_product
from spen.model import SPEN
from spen.parameters import Positive
from spen.protocols import Domain
from spen.rules import LBFGS, LearnedOptimizer
from spen.tensors import as_rows, flat

__all__ = ["Stability", "limit_rates", "measure"]


@dataclass(frozen=True)
class Stability:
    """How close a descent is to the rates at which it would diverge, for one batch."""

    curvatures: Tensor  # (B,): |λ|_max at the answer of each example
    rate: float  # the largest rate
    decay: float  # β, 0 without momentum
    dampening: float = 0.0  # d

    @property
    def limit(self) -> float:
        """2(1 + β)/((1 − d)·λ_max): rates above it diverge."""
        largest = (1 - self.dampening) * float(self.curvatures.max())
        return 2 * (1 + self.decay) / largest if largest > 0 else float("inf")

    @property
    def ratio(self) -> float:
        """η/limit: stable below 1."""
        return self.rate / self.limit


def measure(model: SPEN, x: Any, *, iterations: int = 10) -> Stability:
    """λ_max at the model's answers for x, and the largest rate of its rule."""
    rates = _rates(model)
    minimizer = model.minimizer
    with torch.no_grad():
        features = model.features(x)
        start = model.init(features)
        path = minimizer(model.energy, features, start)
        domain = minimizer.domain
        # A trajectory does not store the coordinates of its outputs.
        z = _coordinates(domain, path.output)
    potential = Potential.of(model.energy, features, domain.output if domain.through else identity)
    potential = potential.at(minimizer.rule.energy_step(minimizer.rule.steps - 1)).detached()
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
    growth = z.new_zeros(z.shape[0])
    for k in range(iterations):
        v = v / as_rows(flat(v).norm(dim=1).clamp_min(torch.finfo(v.dtype).tiny), v)
        v = _applied(potential, domain, z, v, search=k == 0)
        growth = flat(v).norm(dim=1)
    momentum = (float(getattr(minimizer.rule, name, 0.0)) for name in ("decay", "dampening"))
    return Stability(growth, float(rates().detach().max()), *momentum)


def limit_rates(model: SPEN, x: Any, *, share: float = 0.9, iterations: int = 10) -> Stability:
    """Clamp the rates of the rule to ``share`` of the limit. Returns the measurement before that."""
    if not 0 < share <= 1:
        raise ValueError(f"share is the part of the largest stable rate that is allowed, in (0, 1], not {share}")
    found = measure(model, x, iterations=iterations)
    with torch.no_grad():
        if found.limit < float("inf"):
            _rates(model).log.clamp_(max=torch.tensor(share * found.limit).log().item())
    return found


def _rates(model: SPEN) -> Positive:
    rule = getattr(model.minimizer, "rule", None)
    rates = getattr(rule, "rates", None)
    if not isinstance(rates, Positive) or isinstance(rule, LBFGS | LearnedOptimizer):
        kind = type(model.minimizer if rule is None else rule).__name__
        raise ValueError(f"a limit of the rates needs GradientDescent or Momentum, not {kind}")
    return rates


def _coordinates(domain: Domain, y: Tensor) -> Tensor:
    """z with output(z) = y: y itself, or its logarithms where a softmax or sigmoid leads to y."""
    if getattr(domain, "update", "projected") == "projected":
        return y
    tiny = torch.finfo(y.dtype).tiny ** 0.5
    if hasattr(domain, "dim"):
        return y.clamp_min(tiny).log()
    low, high = domain.bounds(y)  # type: ignore[operator]
    inside = ((y - low) / (high - low)).clamp(tiny, 1 - torch.finfo(y.dtype).eps)
    return inside.log() - (1 - inside).log()


def _applied(potential: Potential, domain: Domain, z: Tensor, v: Tensor, *, search: bool) -> Tensor:
    """The derivative along v of the gradient that the descent follows."""
    if domain.through:
        point, direction = z, v
    elif getattr(domain, "update", None) == "mirror":  # log y are logits, whose softmax is y: exp alone would leave Δ
        point, direction = torch.autograd.functional.jvp(partial(torch.softmax, dim=domain.dim), z, v)  # type: ignore[arg-type]
    else:
        point, direction = torch.autograd.functional.jvp(domain.output, z, _along_face(domain, z, v))
    product, _ = exact_product(potential, point, direction, search=search)
    return torch.zeros_like(z) if product is None else _along_face(domain, z, product.detach())


def _along_face(domain: Domain, y: Tensor, v: Tensor) -> Tensor:
    """The part of v that a projection leaves: along the face of the domain that y lies on."""
    if getattr(domain, "update", None) != "projected":
        return v
    if isinstance(domain, Simplex):
        free = (y > 0).to(v)
        v = v * free
        return v - free * v.sum(domain.dim, keepdim=True) / free.sum(domain.dim, keepdim=True)
    low, high = domain.bounds(y)  # type: ignore[operator]
    return torch.where((y > low) & (y < high), v, 0.0)
