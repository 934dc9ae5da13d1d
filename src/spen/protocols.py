"""Every interface of the library on one screen.

    x ──F──▶ features ──Init──▶ start ──▶ z_0 ──┐
                  │                             ▼
                  └──▶ E(y; features) ──∇──▶ step rule ──▶ domain ──▶ y_1 … y_T ──▶ objective

B is the batch; every tensor that belongs to an example has B as its first dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from spen._repr import as_called
from spen.tensors import flat

if TYPE_CHECKING:
    from spen.descent.loop import Descend, Iterates
    from spen.descent.potential import Potential
    from spen.energies.compose import Scaled, Sum
    from spen.model import SPEN

Features = Any  # a pytree of batch-first tensors: a tensor, or a tuple, list, dict, NamedTuple, dataclass of them
State = tuple[Tensor, ...]  # what a step rule carries from one step to the next, batch first
Formula = Callable[[Tensor], tuple[Tensor, Tensor]]  # y -> (∇E, E) for one batch of features: (B, …) -> (B, …), (B,)
Loss = Callable[[Tensor, Any], Tensor]  # ℓ(y, y*): (B,) or a scalar mean


class Energy(nn.Module, ABC):
    """E(y; F(x)): one number per example, low where y is a good answer for x.

    Subclass it and write ``forward``; energies then add up and scale: ``local + 0.5 * prior - other``, ``sum(terms)``.
    Each example is scored alone: no term may mix rows of the batch.
    """

    closed_form = False
    """True for cheap terms with exact second derivatives everywhere, such as an entropy. Strategies that
    approximate a black box still differentiate these exactly."""

    @abstractmethod
    def forward(self, y: Tensor, features: Features) -> Tensor:  # (B, …), pytree -> (B,)
        """The energy of each example."""

    def __call__(self, y: Tensor, features: Features) -> Tensor:
        return super().__call__(y, features)

    def terms(self) -> Iterator[tuple[str, Callable[[Tensor, Features], Tensor], bool]]:
        """Yield (name, function, closed_form) of every summand, so that reports can name the guilty one."""
        yield type(self).__name__, self, self.closed_form

    def formula(self, features: Features) -> Formula | None:
        """∇E written out for these features, for ``gradient=Written()``; None: autograd has to find it."""
        return None

    def __add__(self, other: nn.Module) -> Sum:
        from spen.energies.compose import Sum

        return Sum(self, other) if isinstance(other, nn.Module) else NotImplemented

    def __radd__(self, other: nn.Module | Literal[0]) -> Energy:  # a plain module, or the 0 that sum() begins with
        from spen.energies.compose import Sum

        if isinstance(other, int) and other == 0:
            return self
        return Sum(other, self) if isinstance(other, nn.Module) else NotImplemented

    def __mul__(self, weight: float | Tensor) -> Scaled:
        from spen.energies.compose import Scaled

        return Scaled(self, weight) if isinstance(weight, Real | Tensor) else NotImplemented  # type: ignore[arg-type]

    __rmul__ = __mul__

    def __neg__(self) -> Scaled:
        return self * -1.0

    def __sub__(self, other: nn.Module) -> Sum:
        from spen.energies.compose import Scaled, Sum

        return Sum(self, Scaled(other, -1.0)) if isinstance(other, nn.Module) else NotImplemented

    def __rsub__(self, other: nn.Module) -> Sum:
        from spen.energies.compose import Sum

        return Sum(other, -self) if isinstance(other, nn.Module) else NotImplemented


class Domain(nn.Module, ABC):
    """Where y lives, and how a step stays inside.

    The loop moves coordinates z; people and energies see y = output(z).
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

    @abstractmethod
    def begin(self, z: Tensor) -> State:
        """h_0."""

    @abstractmethod
    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The direction to step against, rate included, and the next state."""

    @abstractmethod
    def recall(self, before: State, after: State) -> Tensor:
        """The gradient that led from one state to the next: it need not be stored a second time."""


@runtime_checkable
class Convergence(Protocol):
    """When one example has arrived."""

    def converged(self, before: Tensor, after: Tensor) -> Tensor:  # (B, …), (B, …) -> (B,) bool
        ...


class GradientStrategy(ABC):
    """How training differentiates the descent. It receives the loop; the loop knows nothing of it."""

    @abstractmethod
    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """Run the loop so that the outputs of the path can be back-propagated."""

    def predict(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        """Run the loop where nothing is to be back-propagated."""
        return descend(potential.detached(), start)


class Objective(ABC):
    """A number to minimise over the parameters: objective(model, x, y*) -> scalar."""

    @abstractmethod
    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor: ...

    def predict(self, model: SPEN, x: Any) -> Tensor:
        """The output that development data is scored on while this objective is trained."""
        return model(x).output

    def __repr__(self) -> str:
        return as_called(self)
