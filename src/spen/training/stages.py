"""Stages: pretrain F through Init, clamp the local terms while the global energy trains, train all jointly (Sec. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from torch import nn

from spen.arguments import described, require
from spen.objectives import EndToEnd, Feedforward
from spen.protocols import Loss, Objective


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of training: an objective, and the parameters it trains. A loss alone means ``EndToEnd(loss)``.

    ``clamp`` holds patterns of parameter names that stay fixed ("features.*", "energy.parts.local.*").
    ``patience`` ends the stage after that many epochs without improvement on the development set (None: never);
    the next stage starts from the best epoch. ``clip`` bounds the norm of the gradient, ``warmup`` raises the learning
    rate linearly over that many updates, ``decay_to`` multiplies it by a cosine from 1 down to this fraction over the
    stage. ``epsilon`` is Adam's: parameters with gradients far below it hardly move, so lower it for a tiny loss.
    ``keep_start`` decides about better scores before this stage. None: the result of ``fit`` is the best epoch of all
    stages; the next stage starts from the best epoch of this one. True: the start also counts as an epoch of this
    stage, so patience counts from it and the next stage starts from it if no epoch is better. False: earlier stages do
    not count, and the result is the best epoch of this stage or of a later one.
    ``average`` > 0 scores and saves an exponential mean of the weights with this decay in their place. ``seconds``
    ends the stage after that much time (scoring included) and stretches the schedule of the learning rate over it;
    ``epochs`` ends it if they come first.
    """

    name: str
    objective: Objective
    epochs: int
    learning_rate: float = 1e-3
    clamp: tuple[str, ...] = ()
    patience: int | None = None
    clip: float | None = None
    warmup: int = 0
    decay_to: float = 1.0
    weight_decay: float = 0.0
    epsilon: float = 1e-8
    keep_start: bool | None = None
    average: float = 0.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective):  # a loss alone
            object.__setattr__(self, "objective", EndToEnd(self.objective))
        if self.epochs < 1 or self.epochs != int(self.epochs) or not self.learning_rate > 0:
            raise ValueError(
                f"stage {self.name!r} needs a whole number of epochs, at least one, and a positive learning rate, "
                f"not {self.epochs} and {self.learning_rate}"
            )
        if not self.epsilon > 0:
            raise ValueError(f"stage {self.name!r}: epsilon must be positive, not {self.epsilon}")
        if not 0 < self.decay_to <= 1:
            raise ValueError(f"stage {self.name!r}: decay_to must lie in (0, 1], not {self.decay_to}")
        if not 0 <= self.average < 1:
            raise ValueError(f"stage {self.name!r}: average must lie in [0, 1), not {self.average}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"stage {self.name!r}: seconds must be positive, not {self.seconds}")

    def trained(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters this stage trains, by name: those that require a gradient and are not clamped.

        A pattern that matches nothing is an error.
        """
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.clamp:
            # F and Init may have no parameters; clamping them is not an error.
            if pattern not in ("features.*", "init.*") and not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"stage {self.name!r} clamps {pattern!r}, which names no parameter of the model")
        moving = {n: p for n, p in model.named_parameters() if p.requires_grad}
        free = {n: p for n, p in moving.items() if not any(fnmatch(n, c) for c in self.clamp)}
        if not free:
            how = "clamps every parameter" if moving else "finds requires_grad=False at every parameter"
            raise ValueError(f"stage {self.name!r} {how}: there is nothing to train")
        return free


def check_arguments(model: nn.Module, stages: Sequence[Stage]) -> None:
    """Refuse what ``fit`` cannot train."""
    if not all(hasattr(model, part) for part in ("features", "init", "energy", "minimizer")):
        raise TypeError(
            f"fit trains a spen.SPEN, not {described(model)}: write SPEN(features=…, init=…, energy=…, minimizer=…)"
        )
    if isinstance(stages, Stage) or not isinstance(stages, Sequence):
        raise TypeError(
            f"stages must be a list of stages, not {described(stages)}: write [joint(EndToEnd(loss), epochs=10)]"
        )
    for stage in stages:
        require(stage, Stage, "a stage", "a Stage", "write joint(EndToEnd(loss), epochs=10)")


def pretrain(loss: Loss, *, epochs: int, learning_rate: float = 1e-3, patience: int | None = None) -> Stage:
    """Fit the feed-forward predictor Init∘F; the parameters of the energy stay fixed."""
    return Stage(
        name="pretrain",
        objective=Feedforward(loss),
        epochs=epochs,
        learning_rate=learning_rate,
        patience=patience,
    )


def clamped(
    objective: Objective | Loss,
    *,
    epochs: int,
    clamp: tuple[str, ...] = ("features.*", "init.*"),
    learning_rate: float = 1e-3,
    clip: float | None = 1.0,
    patience: int | None = None,
    keep_start: bool | None = None,
) -> Stage:
    """Train the global energy while F, Init and other parameters named in ``clamp`` stay fixed."""
    stage = joint(
        objective, epochs=epochs, learning_rate=learning_rate, clip=clip, patience=patience, keep_start=keep_start
    )
    return replace(stage, name="clamped", clamp=clamp)


def joint(
    objective: Objective | Loss,
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    clip: float | None = 1.0,
    patience: int | None = None,
    warmup: int = 0,
    decay_to: float = 1.0,
    epsilon: float = 1e-8,
    keep_start: bool | None = None,
    average: float = 0.0,
    seconds: float | None = None,
) -> Stage:
    """Train everything."""
    return Stage(
        name="joint",
        objective=objective,  # type: ignore[arg-type]  # a loss becomes an objective
        epochs=epochs,
        learning_rate=learning_rate,
        clip=clip,
        patience=patience,
        warmup=warmup,
        decay_to=decay_to,
        epsilon=epsilon,
        keep_start=keep_start,
        average=average,
        seconds=seconds,
    )
