"""Models and stages of the recipes."""

from __future__ import annotations

from torch import Tensor, nn

from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed, Linear
from spen.gradients import Compiled, Detached
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.objectives import EndToEnd, Feedforward, log_loss
from spen.protocols import GradientStrategy, Objective
from spen.rules import GradientDescent, Momentum
from spen.tasks.reasoning.energy import FeedforwardSolver, PuzzleEnergy, Start
from spen.tasks.reasoning.recipes import Recipe
from spen.training import Stage, joint

__all__ = ["build", "cell_loss", "stages"]


def build(system: Recipe) -> SPEN:
    """A model with fresh weights."""
    if system.kind != "energy":
        network = FeedforwardSolver(system.width, system.rounds, tied=system.kind == "recurrent")
        return SPEN(
            features=network,
            init=nn.Identity(),
            energy=EntropySmoothed(Linear()),
            minimizer=Minimizer(Simplex(), GradientDescent(1)),
        )
    energy: Energy = PuzzleEnergy(system.width, system.rounds, system.steps if system.step_aware else 0)
    if system.entropy > 0:
        energy = EntropySmoothed(energy, system.entropy, learned=True)
    rule = Momentum(system.steps, system.rate, decay=system.momentum, learn_rates=True)
    gradient: GradientStrategy | None = Compiled() if system.compiled else None
    if system.detached:
        gradient = Detached()
    return SPEN(energy=energy, init=Start(), minimizer=Minimizer(Simplex(), rule, gradient))


def stages(system: Recipe) -> list[Stage]:
    """One stage that trains everything."""
    objective: Objective = Feedforward(cell_loss)
    if system.kind == "energy":
        objective = EndToEnd(
            cell_loss,
            weights="equal" if system.every_iterate else "harmonic",
            draw_steps=system.draw_steps,
            noise=system.noise,
            rate_limit=system.rate_limit,
        )
    return [
        joint(
            objective,
            epochs=system.epochs,
            learning_rate=system.learning_rate,
            clip=1.0,
            warmup=50,
            decay_to=system.decay_to,
            average=system.average,
            seconds=system.seconds,
        )
    ]


def cell_loss(y: Tensor, target: Tensor) -> Tensor:
    """−log of the probability of the right digit, on average over the cells."""
    return log_loss(y, target) / target.shape[1]
