"""From a recipe to a model and an objective."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy, Scaled, Sum
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Written,
)
from spen.objectives import EndToEnd, StructuredHinge
from spen.protocols import Loss, Objective
from spen.rules import Momentum
from spen.tasks.denoising.baselines.holes import fill_pyramid
from spen.tasks.denoising.priors import ConvexDeepPrior, DataTerm, DeepPrior, FieldOfExperts, Observation
from spen.tasks.denoising.recipes import System
from spen.tasks.denoising.scoring import Target, masked_squared_error, summed_squared_error
from spen.tasks.denoising.unet import DenoiserEnergy, UNetPrior

_STRATEGIES: dict[str, Callable[[], GradientStrategy]] = {
    "auto": Auto,
    "exact": Exact,
    "checkpointed": Checkpointed,
    "finite-difference": FiniteDifference,
    "forward-over-reverse": ForwardOverReverse,
    "compiled": Compiled,
    "compiled-bf16": partial(Compiled, precision=torch.bfloat16),
    "written": Written,
    "written-bf16": Written,
    "written-compiled": Written,
}


class FillHoles(nn.Module):
    """Init for depth images: y_0 is the observation, with means of the readings around where there is none."""

    def forward(self, features: Observation) -> Tensor:
        return fill_pyramid(features.image, features.seen)


def build_prior(system: System, scale: float) -> Energy:
    """−log P, fed the image times ``scale``."""
    shape = (system.width, system.size)
    fed: dict[str, Any] = {"temperature": system.temperature, "scale": scale}
    if system.prior == "foe":
        return FieldOfExperts(*shape, **fed, blind=system.blind)
    if system.prior == "deep":
        return DeepPrior(*shape, **fed, padding="reflect", blind=system.blind)
    if system.prior == "convex":
        return ConvexDeepPrior(*shape, **fed)
    if system.prior == "convex+":
        return ConvexDeepPrior(*shape, **fed, padding="reflect", blind=system.blind, free=True)
    return UNetPrior(
        system.width,
        system.blocks,
        scales=system.scales,
        scale=system.gain * scale,
        blind=system.blind,
        precision=torch.bfloat16 if system.gradient in ("written-bf16", "written-compiled") else None,
        compiled=system.gradient == "written-compiled",
    )


def build_model(system: System, scale: float) -> spen.SPEN:
    """The SPEN of a system, with fresh weights."""
    prior = build_prior(system, scale)
    energy: Energy
    if isinstance(prior, UNetPrior):
        energy = DenoiserEnergy(prior, system.weight)
    elif system.gradient.startswith("written"):
        raise ValueError(f"the prior {system.prior!r} has no formula of its gradient; use another gradient")
    else:
        energy = Sum(local=DataTerm(), prior=Scaled(prior, system.weight / scale**2, learned=True))
    rule = Momentum(system.steps, system.rate, decay=system.momentum, learn_rates=system.learn_rates)
    return spen.SPEN(
        energy=energy,
        init=FillHoles(),
        minimizer=spen.Minimizer(Reals(), rule, _STRATEGIES[system.gradient]()),
    )


def build_objective(system: System) -> Objective:
    """What training minimises."""
    if system.objective == "hinge":
        return StructuredHinge(summed_squared_error, truth=whole_truth)
    return EndToEnd(masked_squared_error, weights=system.iterate_loss)


def whole_truth(target: Target) -> Tensor:  # (B, 1, H, W)
    """y*, with means around where it is not known: a zero there would be a cliff that E(y*) learns to like."""
    known = (target.truth > 0) | (target.scored > 0)
    return fill_pyramid(target.truth, known)


class DenoiserPretraining(Objective):
    """ℓ(y_0 − R(y_0; x)/s, y*): the net of a ``DenoiserEnergy`` as a feed-forward denoiser, before it is descended.

    Where R is the noise, a step along −JᵀR takes most of it away: the descent starts as a denoiser, not as nothing.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, model: spen.SPEN, x: Any, target: Any) -> Tensor:
        return self.loss(self.predict(model, x), target).mean()

    def predict(self, model: spen.SPEN, x: Any) -> Tensor:
        features = model.features(x)
        assert isinstance(model.energy, DenoiserEnergy)
        return model.energy.net.denoised(model.init(features), features)
