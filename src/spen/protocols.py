"""Every interface of the library, except Energy, which is in ``spen.energies.compose`` with the sums of energies.

    x ──F──▶ features ──Init──▶ start ──▶ z_0 ──┐
                  │                             ▼
                  └──▶ E(y; features) ──∇──▶ step rule ──▶ domain ──▶ y_1 … y_T ──▶ objective

B is the batch size; every tensor with one row per example has it as its first dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from spen.arguments import as_called
from spen.tensors import flat

if TYPE_CHECKING:
    from spen.descent.loop import Descend, Iterates
    from spen.descent.potential import Potential
    from spen.model import SPEN

Features = Any  # a pytree of batch-first tensors: a tensor, or a tuple, list, dict, NamedTuple, dataclass of them
State = tuple[Tensor, ...]  # what a step rule carries from one step to the next, batch first
Formula = Callable[[Tensor], tuple[Tensor, Tensor]]  # y -> (∇E, E) for one batch of features: (B, …) -> (B, …), (B,)
Loss = Callable[[Tensor, Any], Tensor]  # ℓ(y, y*): (B,) or a scalar mean


class Domain(nn.Module, ABC):
    """The set of outputs y, and how a step stays inside it.

    The loop moves coordinates z; energies and losses see y = output(z).
    """

    through = False
    """True: the gradient is taken with respect to z, through ``output``; False: with respect to y, at output(z)."""

    @abstractmethod
    def enter(self, start: Tensor) -> Tensor:
        """The coordinates z_0 of what Init returned."""

    @abstractmethod
    def output(self, z: Tensor) -> Tensor:
        """y, a point of the domain."""

    @abstractmethod
    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        """The coordinates after moving against ``direction`` (the rate is already in it)."""

    def contains(self, y: Tensor) -> Tensor:  # (B, …) -> (B,) bool
        """Whether each example of y lies in the domain. By default: whether its numbers are finite."""
        return flat(y).isfinite().all(1)

    @abstractmethod
    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        """J e: a direction along which y can move and stay inside, from free coordinates e."""

    @abstractmethod
    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        """Jᵀ v, the transpose of ``lift``."""


class StepRule(nn.Module, ABC):
    """(g_t, h_t) → (direction, h_{t+1}): what to do with a gradient. Differentiated by autograd."""

    steps: int

    backtracks: int | None = None
    """None: every step is taken. k: a step that would raise the energy of an example is halved, up to k times, and is
    not taken if that does not help. So no step raises the energy. The halvings are constants to the derivative."""

    @abstractmethod
    def begin(self, z: Tensor) -> State:
        """h_0."""

    @abstractmethod
    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The direction to step against, rate included, and the next state."""

    @abstractmethod
    def recall(self, before: State, after: State) -> Tensor:
        """The gradient that led from one state to the next, so that it need not be stored a second time."""

    def energy_step(self, t: int) -> int:
        """The number that an energy with ``knows_step`` receives at step t."""
        return t


@runtime_checkable
class Convergence(Protocol):
    """When an example has converged."""

    def converged(self, before: Tensor, after: Tensor) -> Tensor:  # (B, …), (B, …) -> (B,) bool
        ...


class GradientStrategy(ABC):
    """How training differentiates the descent. It receives the loop; the loop does not depend on it."""

    @abstractmethod
    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """Run the loop so that its outputs can be back-propagated."""

    def predict(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """Run the loop without a backward pass to follow."""
        return descend(potential.detached(), start)

    def __repr__(self) -> str:
        return as_called(self)


class Objective(ABC):
    """A number to minimise over the parameters: objective(model, x, y*) -> scalar."""

    @abstractmethod
    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor: ...

    def predict(self, model: SPEN, x: Any) -> Tensor:
        """The output that is scored on development data during training with this objective."""
        return model(x).output

    def training_state(self) -> dict[str, Any]:
        """What an interrupted training needs of the objective to resume: tensors, numbers, and lists and dicts."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:  # noqa: B027 - most objectives store nothing
        """Resume from ``state``; an empty one begins anew."""

    def __repr__(self) -> str:
        return as_called(self)
