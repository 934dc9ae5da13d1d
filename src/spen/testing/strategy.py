"""The contract of a gradient strategy: the gradients of ``Exact``, for every domain and rule."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn

from spen.descent.convergence import RelativeChange
from spen.domains import Box, Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Softplus
from spen.gradients.exact import Exact
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.objectives import EndToEnd, squared_error
from spen.protocols import Convergence, Domain, GradientStrategy, StepRule
from spen.rules import LBFGS, GradientDescent, Momentum
from spen.testing.report import require


class SmoothEnergy(Energy):
    """⟨w, σ(A y + C f + b)⟩ + ½‖y − D f‖²/k: small, non-linear in everything, with two derivatives."""

    def __init__(self, outputs: int, features: int, width: int = 7) -> None:
        super().__init__()
        self.mix = nn.Linear(outputs, width)
        self.context = nn.Linear(features, width, bias=False)
        self.target = nn.Linear(features, outputs, bias=False)
        self.weigh = nn.Linear(width, 1)
        self.activation = Softplus(2.0)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        hidden = self.activation(self.mix(y) + self.context(features)[:, None])
        pull = (y - self.target(features)[:, None]).square().sum((1, 2))
        return self.weigh(hidden).sum((1, 2)) + 0.1 * pull


def all_domains() -> list[Domain]:
    """Every domain with every update."""
    return [
        Reals(),
        Box("projected"),
        Box("logits"),
        Box("through_logits"),
        Box("projected", low=-0.5, high=0.25),
        Box("through_logits", low=torch.tensor(-2.0), high=3.0),
        Simplex("logits"),
        Simplex("through_logits"),
        Simplex("mirror"),
        Simplex("projected"),
        Simplex("through_logits", dim=1),
    ]


def all_rules(steps: int = 4) -> list[StepRule]:
    """Every rule, with learned rates."""
    return [
        GradientDescent(steps, 0.3, learn_rates=True),
        Momentum(steps, 0.3, decay=0.5, learn_rates=True),
        LBFGS(steps, 0.5, memory=2, first_rate=0.2, learn_rates=True),
    ]


def example_model(
    domain: Domain,
    rule: StepRule,
    gradient: GradientStrategy,
    stop: Convergence | None = None,
    *,
    keep_gradients: bool = False,
) -> tuple[SPEN, Tensor, Tensor]:
    """A small SPEN in double precision with inputs (6, 3) and targets (6, 2, 4), the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        energy: nn.Module = SmoothEnergy(4, 5)
        if isinstance(domain, Simplex):
            energy = EntropySmoothed(energy, 0.2, learned=True)
        model = SPEN(
            features=nn.Sequential(nn.Linear(3, 5), nn.Tanh()),
            init=nn.Sequential(nn.Linear(5, 8), nn.Unflatten(1, (2, 4))),
            energy=energy,
            minimizer=Minimizer(domain, copy.deepcopy(rule), gradient, stop, keep_gradients=keep_gradients),
        ).double()
        # Rows of very different size, so that examples stop at different steps.
        x = torch.randn(6, 3, dtype=torch.float64) * torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])[:, None]
        classes = domain.dim if isinstance(domain, Simplex) else -1
        target = torch.softmax(torch.randn(6, 2, 4, dtype=torch.float64), classes)
    return model, x, target


def dividing_stop(domain: Domain, rule: StepRule) -> RelativeChange:
    """A tolerance at which half of the example batch stops after its first step, the others later or never."""
    model, x, _ = example_model(domain, rule, Exact())
    with torch.no_grad():
        trajectory = model(x)
    start, first = trajectory.start.flatten(1), trajectory.outputs[0].flatten(1)
    changes = (first - start).norm(dim=1) / start.norm(dim=1)
    low, high = changes.sort().values[2:4].tolist()
    return RelativeChange((low + high) / 2)


def gradients_of(model: SPEN, x: Tensor, target: Tensor, objective: EndToEnd) -> dict[str, Tensor]:
    """d objective / d parameter, by name, and for the input ``x``; zeros without a gradient."""
    leaf = x.clone().requires_grad_()
    named = {**dict(model.named_parameters()), "x": leaf}
    bars = torch.autograd.grad(objective(model, leaf, target), list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if b is None else b for (n, p), b in zip(named.items(), bars, strict=True)}


def check_strategy(strategy: GradientStrategy, *, tolerance: float = 1e-8, domains: list[Domain] | None = None) -> None:
    """Raise ContractError unless ``strategy`` gives the gradients of ``Exact`` in double precision.

    For every domain and rule, with and without early stopping, with a loss on every iterate and on the gradients:
    parameters of the energy, F, Init and the rates, all by value.
    """
    objective = EndToEnd(squared_error, change_penalty=0.01, gradient_penalty=0.01)
    for domain in all_domains() if domains is None else domains:
        # One energy for all rules: a strategy that compiles it does so once.
        model, x, target = example_model(domain, all_rules()[0], strategy)
        for rule, stopping in itertools.product(all_rules(), (False, True)):
            stop = dividing_stop(domain, rule) if stopping else None
            found, exact = (
                gradients_of(_with(model, rule, gradient, stop), x, target, objective)
                for gradient in (strategy, Exact())
            )
            scale = max(float(g.abs().max()) for g in exact.values())
            for name, value in exact.items():
                error = float((found[name] - value).abs().max()) / scale
                require(
                    error <= tolerance,
                    f"{strategy} differs from Exact by {error:.1e} (allowed {tolerance:.0e}) in the gradient of "
                    f"{name}, over {domain} with {type(rule).__name__}{'' if stop is None else ' and early stopping'}",
                )


def _with(model: SPEN, rule: StepRule, gradient: GradientStrategy, stop: Convergence | None) -> SPEN:
    """The model with another minimiser over its domain."""
    model.minimizer = Minimizer(
        model.minimizer.domain, copy.deepcopy(rule), gradient, stop, keep_gradients=True
    ).double()
    return model
