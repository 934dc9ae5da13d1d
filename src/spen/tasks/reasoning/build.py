"""Models and stages of the recipes."""

from __future__ import annotations

from torch import nn

from spen.energies import Linear
from spen.gradients import Detached
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.objectives import EndToEnd, Feedforward
from spen.protocols import Objective
from spen.rules import GradientDescent, Momentum
from spen.tasks.reasoning.energy import Solver
from spen.tasks.reasoning.problems import PROBLEMS
from spen.tasks.reasoning.recipes import Recipe
from spen.training import Stage, joint


def build(system: Recipe) -> SPEN:
    """A model with fresh weights."""
    problem = PROBLEMS[system.problem]
    if system.kind != "energy":
        tied = system.kind == "recurrent"
        network = problem.network(system.width, 1 if tied else system.rounds, system.rounds if tied else 1)
        return SPEN(
            features=nn.Sequential(problem.features(system), Solver(network, problem.start())),
            init=nn.Identity(),
            energy=Linear(),
            minimizer=Minimizer(problem.domain(), GradientDescent(1)),
        )
    rule = Momentum(system.steps, system.rate, decay=system.momentum, learn_rates=True)
    gradient = Detached() if system.detached else None
    return SPEN(
        features=problem.features(system),
        init=problem.start(),
        energy=problem.energy(system),
        minimizer=Minimizer(problem.domain(), rule, gradient),
    )


def stages(system: Recipe) -> list[Stage]:
    """One stage that trains everything."""
    loss = PROBLEMS[system.problem].loss
    objective: Objective = Feedforward(loss)
    if system.kind == "energy":
        objective = EndToEnd(
            loss,
            weights="equal" if system.every_iterate else "harmonic",
            draw_steps=system.draw_steps,
            noise=system.noise,
            rate_limit=system.rate_limit,
            replay=system.replay,
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
