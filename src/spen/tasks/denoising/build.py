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
    with_noise,
)
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.losses import Target, log_squared_error, masked_squared_error, summed_squared_error
from spen.tasks.denoising.methods import Classical, Network, Recipe, System
from spen.tasks.denoising.noise import Kind
from spen.tasks.denoising.noise_estimate import noise_estimate
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import Regime, find_regime
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
    """F of a noise-conditioned model: the noise level of x, or an estimate for noise of this kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind

    def forward(self, x: Observed) -> NoisyObservation:
        if isinstance(x, NoisyObservation):
            return x
        return with_noise(x, noise_estimate(x, self.kind).flatten())


class ZerosAsReadings(nn.Module):
    """F(x) without a mask: missing readings count as readings of zero."""

    def forward(self, x: Observed) -> Observed:
        return x._replace(seen=torch.ones_like(x.seen))


class StartFromReading(nn.Module):
    """Init: y_0 = x, zero where there is no reading."""

    def forward(self, features: Observed) -> Tensor:
        return features.image


class FillHoles(nn.Module):
    """Init for depth images: y_0 is the observation, with its holes filled by means of the readings around."""

    def forward(self, features: Observed) -> Tensor:
        return fill_pyramid(features.image, features.seen)


def build_prior(system: System, scale: float) -> Energy:
    """−log P of the image times ``scale``."""
    if system.prior == "unet":
        low = system.gradient in ("written-bf16", "written-compiled")
        return _unet(system, scale, torch.bfloat16 if low else None, compiled=system.gradient == "written-compiled")
    options: dict[str, Any] = {"temperature": system.temperature, "scale": scale}
    if system.prior == "foe":
        return FieldOfExperts(system.width, system.size, **options, blind=system.blind)
    options["average_pooling"] = system.average_pooling
    if system.prior == "convex":
        return ConvexDeepPrior(system.width, system.size, **options)
    options |= {"padding": "reflect", "blind": system.blind}
    if system.prior == "convex+":
        return ConvexDeepPrior(system.width, system.size, **options, free=True)
    return DeepPrior(system.width, system.size, **options)


def _unet(method: System | Network, scale: float, precision: torch.dtype | None, *, compiled: bool) -> UNetPrior:
    return UNetPrior(
        method.width,
        method.blocks,
        scales=method.scales,
        scale=method.gain * scale,
        floor=method.floor,
        blind=method.blind,
        precision=precision,
        compiled=compiled,
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
    features: list[nn.Module] = [WithNoise(kind)] if system.reads_noise else []
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


def build_objective(method: System | Network) -> Objective:
    """What training minimises."""
    loss: Loss = masked_squared_error
    if method.reads_noise:  # a range of noise: the squared error of the strongest would outweigh all others
        loss = partial(log_squared_error, floor=method.floor)
    if isinstance(method, Network):
        return Feedforward(loss)
    if method.objective == "hinge":
        return StructuredHinge(summed_squared_error, truth=whole_truth)
    return EndToEnd(loss, weights=method.iterate_loss)


def whole_truth(target: Target) -> Tensor:  # (B, 1, H, W)
    """y*, filled where it is not known: a zero there would be a step that lowers E(y*) in training."""
    known = (target.truth > 0) | (target.scored > 0)
    return fill_pyramid(target.truth, known)


def build(recipe: Recipe, regime: Regime) -> tuple[spen.SPEN, Objective]:
    """The model of a recipe and the objective it is trained with. A network is a SPEN whose Init does everything."""
    method = recipe.method
    if isinstance(method, Classical):
        raise ValueError(f"{recipe.name} has nothing to train by gradient")
    if isinstance(method, System):
        model = build_model(method, regime.scale, regime.kind)
    else:
        model = spen.SPEN(
            energy=DataTerm(),
            init=build_network(method, regime.scale),
            features=WithNoise(regime.kind) if method.reads_noise else None,
            minimizer=spen.Minimizer(Reals(), GradientDescent(1, 1e-3), Exact()),
        )
    model.origin = origin_of(recipe, regime)
    return model, build_objective(method)


def build_network(method: Network, scale: float) -> nn.Module:
    """A feed-forward predictor, Observation → image."""
    from spen.tasks.denoising.baselines.networks import ConvNet, ProximalNet

    if method.kind == "unet":
        return UNetDenoiser(_unet(method, scale, torch.bfloat16, compiled=not method.bf16))
    if method.kind == "proximal":
        return ProximalNet(filters=method.width, size=method.size, iterations=method.iterations, scale=scale)
    return ConvNet(
        width=method.width,
        depth=method.depth,
        size=method.size,
        residual=method.residual,
        blind=method.blind,
        mask=method.mask,
        scale=scale,
    )


def origin_of(recipe: Recipe, regime: Regime) -> Origin:
    """The task and the settings that config.json stores."""
    return Origin(recipe.task, {"recipe": recipe.name, "data": regime.saved, "options": asdict(recipe.method)})


def rebuild(recipe: str, data: str | dict[str, Any], options: dict[str, Any]) -> spen.SPEN:
    """The model of a recipe, from the settings of config.json."""
    return build(find_recipe(recipe).restored(options), find_regime(data))[0]


def denoiser(model: spen.SPEN, objective: Objective, device: str = "cpu") -> Denoise:
    """A trained model as a function; the model is moved to the device and frozen."""
    model.to(device).eval().requires_grad_(False)

    def denoise(x: Observed) -> Tensor:
        with torch.no_grad():
            return objective.predict(model, type(x)(*(t.to(device) for t in x))).cpu()

    return denoise
