"""What the minimiser returns, always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from spen.descent.loop import Iterates
from spen.descent.potential import Potential, identity
from spen.protocols import Domain
from spen.tensors import tree_map


@dataclass(init=False, repr=False, eq=False)
class Trajectory:
    """y_0, y_1 … y_T with the energies on the way.

    ``outputs`` always has T entries: once every example has arrived, the last one stands for the steps not taken.
    """

    # The fields: where DistributedDataParallel and fully_shard look for what a loss reads.
    outputs: list[Tensor]
    _gradients: list[Tensor] | None

    def __init__(
        self,
        start: Tensor,
        outputs: list[Tensor],
        *,
        steps: int,
        steps_used: Tensor,
        converged: Tensor,
        energies: list[Tensor],
        gradients: list[Tensor] | None,
        score: Callable[[Tensor], Tensor],
    ) -> None:
        self.start = start
        """y_0 (B, …): Init's answer as a point of the domain."""
        self.outputs = [*outputs, *[outputs[-1]] * (steps - len(outputs))]
        """[y_1, …, y_T], each (B, …)."""
        self.steps_used = steps_used
        """(B,): the number of steps each example took."""
        self.converged = converged
        """(B,) bool: which examples arrived before the steps ran out. All False without a stopping rule."""
        self._energies = energies
        self._gradients = gradients
        self._score = score

    @classmethod
    def of(
        cls, path: Iterates, domain: Domain, steps: int, potential: Potential, start: Tensor, *, gradients: bool
    ) -> Trajectory:
        """What a descent of at most ``steps`` steps left behind, with the energy that scores its answer."""
        plain = Potential(potential.energy, tree_map(Tensor.detach, potential.features), identity)
        return cls(
            domain.output(domain.enter(start)),
            path.outputs,
            steps=steps,
            steps_used=path.steps_used,
            converged=path.converged,
            energies=path.energies,
            gradients=path.gradients if gradients else None,
            score=partial(_scored, plain),
        )

    @property
    def output(self) -> Tensor:
        """y_T (B, …), the prediction."""
        return self.outputs[-1]

    @property
    def gradients(self) -> list[Tensor]:
        """[g_0, …] at y_0, y_1, … for each step taken; 0 for examples that had stopped.

        dE/dy; over a domain that differentiates through its output map (``through_logits``), dE/dz of the logits z.
        """
        if self._gradients is None:
            raise ValueError("this trajectory kept no gradients; build the Minimizer with keep_gradients=True")
        return self._gradients

    @cached_property
    def energies(self) -> Tensor:
        """(T + 1, B): E(y_0) … E(y_T), without gradient. E(y_T) is evaluated when this is first asked for.

        An energy that knows the step scores y_t at step t, and y_T at the last step, T − 1.
        """
        final = self._score(self.output.detach())
        rows = [*self._energies, *[torch.full_like(final, torch.nan)] * (len(self.outputs) - len(self._energies))]
        values = torch.stack([*rows, final])
        return torch.where(values.isnan() & self._stopped(values), final, values)

    def is_finite(self) -> Tensor:
        """A single truth value, on the device: every energy met on the way and the prediction are finite."""
        met = torch.stack(self._energies)
        fine = met.isfinite() | self._stopped(met)
        return fine.all() & self.output.detach().isfinite().all()

    def _stopped(self, values: Tensor) -> Tensor:  # (T + 1, B): steps an example no longer took
        t = torch.arange(values.shape[0], device=values.device)[:, None]
        return t >= self.steps_used

    def __repr__(self) -> str:
        return (
            f"Trajectory(output={tuple(self.output.shape)}, steps={len(self.outputs)}, "
            f"steps_used={self.steps_used.tolist() if self.steps_used.numel() <= 8 else 'of each example'})"
        )


def _scored(potential: Potential, output: Tensor) -> Tensor:
    with torch.no_grad():
        return potential(output)
