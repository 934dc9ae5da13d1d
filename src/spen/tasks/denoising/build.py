"""From a recipe to a model and an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.builders import Origin
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
from spen.objectives import EndToEnd, Feedforward, StructuredHinge
from spen.protocols import Loss, Objective
from spen.rules import GradientDescent, Momentum
from spen.tasks.denoising.energy import (
    ConvexDeepPrior,
    DataTerm,
    DeepPrior,
    FieldOfExperts,
    NoisyObservation,
    Observed,
)
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.losses import Target, masked_squared_error, summed_squared_error
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import noise_estimate
from spen.tasks.denoising.recipes import Network, Recipe, Regime, System, find_recipe, find_regime
from spen.tasks.denoising.unet import DenoiserEnergy, UNetDenoiser, UNetPrior

Denoise = Callable[[Observed], Tensor]

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


class WithNoise(nn.Module):
    """F of a model that is told the noise: what x says of it, or an estimate of noise of this kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind

    def forward(self, x: Observed) -> NoisyObservation:
        if isinstance(x, NoisyObservation):
            return x
        return NoisyObservation(x.image, x.seen, noise_estimate(x, self.kind))


class ZerosAsReadings(nn.Module):
    """F(x) without a mask: what the sensor missed is a reading of zero."""

    def forward(self, x: Observed) -> Observed:
        return x._replace(seen=torch.ones_like(x.seen))


class StartFromReading(nn.Module):
    """Init: y_0 = x, zero where there is no reading."""

    def forward(self, features: Observed) -> Tensor:
        return features.image


class FillHoles(nn.Module):
    """Init for depth images: y_0 is the observation, with means of the readings around where there is none."""

    def forward(self, features: Observed) -> Tensor:
        return fill_pyramid(features.image, features.seen)


def build_prior(system: System, scale: float) -> Energy:
    """−log P, fed the image times ``scale``."""
    shape = (system.width, system.size)
    fed: dict[str, Any] = {"temperature": system.temperature, "scale": scale}
    if system.prior == "foe":
        return FieldOfExperts(*shape, **fed, blind=system.blind)
    fed["average_pooling"] = system.average_pooling
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
        floor=system.floor,
        blind=system.blind,
        precision=torch.bfloat16 if system.gradient in ("written-bf16", "written-compiled") else None,
        compiled=system.gradient == "written-compiled",
    )


def build_model(system: System, scale: float, kind: Kind = "gaussian") -> spen.SPEN:
    """The SPEN of a system, with fresh weights."""
    scale = scale if system.scaled else 1.0
    prior = build_prior(system, scale)
    energy: Energy
    if isinstance(prior, UNetPrior):
        energy = DenoiserEnergy(prior, system.weight)
    elif system.gradient.startswith("written"):
        raise ValueError(f"the prior {system.prior!r} has no formula of its gradient; use another gradient")
    else:
        energy = Sum(local=DataTerm(), prior=Scaled(prior, system.weight / scale**2, learned=True))
    features: list[nn.Module] = [WithNoise(kind)] if system.told else []
    features += [] if system.mask else [ZerosAsReadings()]
    rule = Momentum(
        system.steps,
        system.rate,
        decay=system.momentum,
        dampening=system.dampening,
        learn_rates=system.learn_rates,
        backtracks=10 if system.line_search else None,
    )
    return spen.SPEN(
        features=nn.Sequential(*features) if features else None,
        energy=energy,
        init=FillHoles() if system.mask and system.fill else StartFromReading(),
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


def build(recipe: Recipe, regime: Regime) -> tuple[spen.SPEN, Objective]:
    """The model of a recipe and the objective it is trained with. A network is a SPEN whose Init does everything."""
    objective: Objective
    if isinstance(recipe.method, System):
        model, objective = build_model(recipe.method, regime.scale, regime.kind), build_objective(recipe.method)
    elif isinstance(recipe.method, Network):
        minimizer = spen.Minimizer(Reals(), GradientDescent(1, 1e-3), Exact())
        model = spen.SPEN(
            energy=DataTerm(),
            init=_network(recipe.method, regime.scale),
            features=WithNoise(regime.kind) if recipe.method.told else None,
            minimizer=minimizer,
        )
        objective = Feedforward(masked_squared_error)
    else:
        raise ValueError(f"{recipe.name} has nothing to train by gradient")
    model.origin = origin_of(recipe, regime)
    return model, objective


def origin_of(recipe: Recipe, regime: Regime) -> Origin:
    """What config.json says of a model."""
    return Origin(recipe.task, {"recipe": recipe.name, "data": regime.saved, "options": asdict(recipe.method)})


def rebuild(recipe: str, data: str | dict[str, Any], options: dict[str, Any]) -> spen.SPEN:
    """The model of a recipe, from what a saved model's config.json says of it."""
    return build(find_recipe(recipe).restored(options), find_regime(data))[0]


def kind_of(recipe: Recipe, regime: Regime) -> Kind | None:
    """Of the noise that a model is told; None for a model that is told none."""
    return regime.kind if recipe.method.told else None


def _network(method: Network, scale: float) -> nn.Module:
    from spen.tasks.denoising.baselines.networks import ConvNet, ProximalNet

    if method.kind == "unet":
        prior = UNetPrior(
            method.width,
            method.blocks,
            scales=method.scales,
            scale=method.gain * scale,
            floor=method.floor,
            blind=method.blind,
            precision=torch.bfloat16,
            compiled=True,
        )
        return UNetDenoiser(prior)
    if method.kind == "convnet":
        return ConvNet(
            width=method.width,
            depth=method.depth,
            size=method.size,
            residual=method.residual,
            blind=method.blind,
            mask=method.mask,
            scale=scale,
        )
    return ProximalNet(filters=method.width, size=method.size, iterations=method.iterations, scale=scale)


def denoiser(model: spen.SPEN, objective: Objective, device: str = "cpu") -> Denoise:
    """A trained model as a function; the model goes to the device and learns no more."""
    model.to(device).eval().requires_grad_(False)

    def denoise(x: Observed) -> Tensor:
        with torch.no_grad():
            return objective.predict(model, type(x)(*(t.to(device) for t in x))).cpu()

    return denoise
