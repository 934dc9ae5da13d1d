"""From a recipe to a model and an objective."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
)
from spen.objectives import EndToEnd, StructuredHinge
from spen.protocols import Objective
from spen.rules import Momentum
from spen.tasks.denoising.baselines.holes import fill_pyramid
from spen.tasks.denoising.priors import ConvexDeepPrior, DataTerm, DeepPrior, FieldOfExperts, Observation
from spen.tasks.denoising.recipes import System
from spen.tasks.denoising.scoring import masked_squared_error, summed_squared_error
from spen.tasks.denoising.unet import UNetPrior

_STRATEGIES: dict[str, Callable[[], GradientStrategy]] = {
    "auto": Auto,
    "exact": Exact,
    "checkpointed": Checkpointed,
    "finite-difference": FiniteDifference,
    "forward-over-reverse": ForwardOverReverse,
    "compiled": Compiled,
    "compiled-bf16": partial(Compiled, precision=torch.bfloat16),
}


class FillHoles(nn.Module):
    """Init for depth images: y_0 is the observation, with means of the readings around where there is none."""

    def forward(self, features: Observation) -> Tensor:
        return fill_pyramid(features.image, features.seen)


def build_prior(system: System, scale: float) -> Energy:
    """−log P, fed the image times ``scale``."""
    if system.prior == "foe":
        return FieldOfExperts(
            system.width, system.size, temperature=system.temperature, scale=scale, blind=system.blind
        )
    if system.prior == "deep":
        return DeepPrior(
            system.width,
            system.size,
            temperature=system.temperature,
            scale=scale,
            padding="reflect",
            blind=system.blind,
        )
    if system.prior == "convex":
        return ConvexDeepPrior(system.width, system.size, temperature=system.temperature, scale=scale)
    return UNetPrior(system.width, scale=scale)


def build_model(system: System, scale: float) -> spen.SPEN:
    """The SPEN of a system, with fresh weights."""
    prior = Scaled(build_prior(system, scale), system.weight / scale**2, learned=True)
    rule = Momentum(system.steps, system.rate, decay=system.momentum, learn_rates=system.learn_rates)
    return spen.SPEN(
        energy=Sum(local=DataTerm(), prior=prior),
        init=FillHoles(),
        minimizer=spen.Minimizer(Reals(), rule, _STRATEGIES[system.gradient]()),
    )


def build_objective(system: System) -> Objective:
    """What training minimises."""
    if system.objective == "hinge":
        return StructuredHinge(summed_squared_error, truth=lambda target: target.truth)
    return EndToEnd(masked_squared_error, weights=system.iterate_loss)
