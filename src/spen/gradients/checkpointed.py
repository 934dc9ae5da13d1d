"""Iterates stored, steps recomputed, products by double backprop."""

from __future__ import annotations

from torch import Tensor

from spen.descent.potential import Potential
from spen.gradients.replay import Replayed
from spen.gradients.second_order import Products, exact_product


class Checkpointed(Replayed):
    """The gradient of ``Exact``, from the iterates alone: one step's activations in memory at a time.

    Time: one more evaluation of the energy per step than ``Exact``.
    """

    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        return exact_product(potential, point, direction)

    def __repr__(self) -> str:
        return "Checkpointed()"
