"""What the minimiser returns, always."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spen.descent.loop import Iterates
from spen.descent.potential import Potential, identity
from spen.protocols import Domain
from spen.tensors import tree_map


@dataclass(init=False, repr=False, eq=False)
class Trajectory:
    """y_0, y_1 … y_T with the energies on the way.

    ``outputs`` always has T entries: once every example has converged, the last one is repeated.
    """

    # DistributedDataParallel and fully_shard look for the tensors of a loss in the fields of a dataclass.
    outputs: list[Tensor]
    _gradients: list[Tensor] | None

    def __init__(
        self, path: Iterates, domain: Domain, steps: int, potential: Potential, start: Tensor, *, gradients: bool
    ) -> None:
        """What a descent of at most ``steps`` steps left behind; ``potential`` scores its last output."""
        self.start = domain.output(domain.enter(start))
        """y_0 (B, …): Init's answer as a point of the domain."""
        self.outputs = [*path.outputs, *[path.outputs[-1]] * (steps - len(path.outputs))]
        """[y_1, …, y_T], each (B, …)."""
        self.steps_used = path.steps_used
        """(B,): the number of steps each example took."""
        self.converged = path.converged
        """(B,) bool: which examples converged before the steps ran out. All False without a stopping rule."""
        self._energies = path.energies
        self._gradients = path.gradients if gradients else None
        self._potential = Potential(potential.energy, tree_map(Tensor.detach, potential.features), identity)

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
        """(T + 1, B): E(y_0) … E(y_T), without gradient. E(y_T) is evaluated at the first access.

        An energy that knows the step scores y_t at step t, and y_T at the last step, T − 1.
        """
        final = self._potential.value(self.output.detach())
        rows = [*self._energies, *[torch.full_like(final, torch.nan)] * (len(self.outputs) - len(self._energies))]
        values = torch.stack([*rows, final])
        return torch.where(values.isnan() & self._stopped(values), final, values)

    def is_finite(self) -> Tensor:
        """A single truth value, on the device: every energy E(y_0) … E(y_{T−1}) and the prediction are finite."""
        energies = torch.stack(self._energies)
        return (energies.isfinite() | self._stopped(energies)).all() & self.output.detach().isfinite().all()

    def _stopped(self, values: Tensor) -> Tensor:  # (T + 1, B): steps an example no longer took
        t = torch.arange(values.shape[0], device=values.device)[:, None]
        return t >= self.steps_used

    def __repr__(self) -> str:
        return (
            f"Trajectory(output={tuple(self.output.shape)}, steps={len(self.outputs)}, "
            f"steps_used={self.steps_used.tolist() if self.steps_used.numel() <= 8 else 'of each example'})"
        )
