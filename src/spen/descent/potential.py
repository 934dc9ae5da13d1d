"""E_x(y): an energy bound to the features of one batch, ready to be differentiated."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spen.energies.compose import changed_sum, evaluate, knows_step, terms_of
from spen.tensors import CONSTANTS, flatten, select, tensors_of, tree_map, twice

ScoreFunction = Callable[..., Tensor]  # (y, features), and the step for energies that know it
Inspect = Callable[["Potential", Tensor, Tensor], None]  # potential, energies with their graph, point


class Stepped(NamedTuple):
    """Features and the number of the step (B,), for energies with ``knows_step``.

    The step is a tensor with one row per example, so that programs and CUDA graphs take it as an input, as any feature.
    """

    features: Any
    t: Tensor


def score(energy: ScoreFunction, y: Tensor, features: Any) -> Tensor:
    """E(y; features), or E(y; features, t) if the features come with a step."""
    return evaluate(energy, y, *features) if isinstance(features, Stepped) else energy(y, features)


def identity(point: Tensor) -> Tensor:
    """The ``view`` of a potential that is differentiated with respect to the output itself."""
    return point


@dataclass(frozen=True)
class Potential:
    """The function whose gradient the descent follows.

    ``energy`` scores outputs; ``view`` maps the point that is differentiated to an output (the identity, or the
    softmax when a domain differentiates through it).
    """

    energy: nn.Module
    features: Any
    view: Callable[[Tensor], Tensor]
    learned: tuple[nn.Parameter, ...] = ()
    draws: bool = False
    """The energy draws random numbers: it is the same function only from the same state of the generators."""
    again: ClassVar[bool] = False
    """Whether this is the first evaluation of a backward pass, whose values are checked."""

    @classmethod
    def of(cls, energy: nn.Module, features: Any, view: Callable[[Tensor], Tensor] = identity) -> Potential:
        """Bind an energy to features. Its parameters are looked up once, since every step needs them."""
        learned = tuple(p for p in energy.parameters() if p.requires_grad)
        return cls(energy, _stepped(features) if knows_step(energy) else features, view, learned)

    def __call__(self, point: Tensor, part: ScoreFunction | None = None) -> Tensor:  # (B, …) -> (B,)
        output = self.view(point)
        energies = score(self.energy if part is None else part, output, self.features)
        if not isinstance(energies, Tensor):
            raise TypeError(
                f"the energy {type(self.energy).__name__} returned a {type(energies).__name__}; it must return a "
                f"tensor with one number per example, shape ({point.shape[0]},)"
            )
        if energies.shape != (point.shape[0],):
            raise ValueError(
                f"the energy returned shape {tuple(energies.shape)} for a batch of {point.shape[0]}; "
                f"it must return one number per example, shape ({point.shape[0]},)"
            )
        return energies

    def at(self, t: int) -> Potential:
        """The function at step t, for an energy with ``knows_step``; otherwise itself."""
        if not isinstance(self.features, Stepped):
            return self
        return replace(self, features=self.features._replace(t=torch.full_like(self.features.t, t)))

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the energy that require a gradient."""
        return list(self.learned)

    def feature_tensors(self) -> list[Tensor]:
        """The features that require a gradient."""
        return [leaf for leaf in tensors_of(self.features) if leaf.requires_grad]

    def detached(self, rows: Tensor | None = None) -> Potential:
        """The same function (for some rows) with detached features, which require a gradient where they did before."""

        def detach(f: Tensor) -> Tensor:
            value = f.detach() if rows is None else f.detach().index_select(0, rows)
            return value.requires_grad_(f.requires_grad)

        return replace(self, features=tree_map(detach, self.features))

    def rows(self, rows: Tensor | None) -> Potential:
        """The function for some examples of the batch (None: all of them), still attached to F."""
        return self if rows is None else replace(self, features=select(self.features, rows))

    def doubled(self) -> Potential:
        """The function for the batch followed by the batch again."""
        return replace(self, features=twice(self.features))

    def split(self) -> tuple[ScoreFunction | None, ScoreFunction | None]:
        """(black box, closed form): the terms whose second derivative is estimated, and those with an exact one."""
        terms = terms_of(self.energy)
        if not any(closed for _, _, closed in terms):
            return self.energy, None
        if changed := changed_sum(self.energy):
            raise ValueError(
                f"the energy {changed} overrides forward or has a forward hook, so it may not be the sum of its terms, "
                "of which finite differences differentiate the entropy exactly: override terms as well, or use "
                "gradient=Checkpointed()"
            )
        return _added([f for _, f, closed in terms if not closed]), _added([f for _, f, closed in terms if closed])

    def value(self, point: Tensor) -> Tensor:
        """E at a point, detached. An energy may call autograd itself, which needs a graph."""
        try:
            with torch.no_grad():
                return self(point)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            return self(point.detach().requires_grad_()).detach()

    def gradient(self, point: Tensor, inspect: Inspect | None = None) -> tuple[Tensor, Tensor]:
        """(∇E, E) at a point, detached. ``inspect`` is called with the energies, before their graph is freed."""
        with torch.enable_grad():
            leaf = point.detach().requires_grad_()
            energies = self(leaf)
            if inspect is not None:
                inspect(self, energies, leaf)
            gradient = input_gradient(energies, leaf, create_graph=False)
        return gradient, energies.detach()

    def differentiable_gradient(self, point: Tensor, inspect: Inspect | None = None) -> tuple[Tensor, Tensor]:
        """(∇E, E) with ∇E part of the graph, to be differentiated a second time."""
        with torch.enable_grad():
            # A fresh alias: the point may also be a feature (Init may return the image), and only dE/dy is wanted.
            leaf = point.view_as(point) if point.requires_grad else point.detach().requires_grad_()
            energies = self(leaf)
            if inspect is not None:
                inspect(self, energies, leaf)
            return input_gradient(energies, leaf, create_graph=True), energies.detach()


def _stepped(features: Any) -> Stepped:
    rows = tensors_of(features)
    if not rows:
        raise ValueError(
            "an energy that knows the step needs features with a tensor, whose rows say how many t there are"
        )
    return Stepped(features, torch.zeros(rows[0].shape[0], dtype=torch.long, device=rows[0].device))


def check_features(features: Any, batch: int) -> None:
    """Every tensor of the features must have one row per example, so that rows can leave the batch."""
    for leaf in flatten(features)[0]:
        if isinstance(leaf, Tensor):
            if leaf.dim() == 0 or leaf.shape[0] != batch:
                raise ValueError(
                    f"a feature tensor has shape {tuple(leaf.shape)} in a batch of {batch}; every tensor F returns "
                    "must have one row per example (shared tensors belong to the energy, as buffers or parameters)"
                )
        elif not isinstance(leaf, CONSTANTS):
            raise ValueError(
                f"the features hold a {type(leaf).__name__}, which no gradient would reach: F may return tensors and "
                "numbers, in tuples, lists, dicts, named tuples and dataclasses"
            )


def is_replica(module: nn.Module) -> bool:
    """Whether ``nn.DataParallel`` made the module, or a part of it: ``parameters()`` of such a replica is empty."""
    return any(part.__dict__.get("_is_replica", False) for part in module.modules())


def input_gradient(energies: Tensor, point: Tensor, *, create_graph: bool) -> Tensor:
    if torch.is_inference_mode_enabled():
        raise ValueError("dE/dy cannot be computed under torch.inference_mode(): use torch.no_grad() instead")
    if not energies.requires_grad:
        raise ValueError("the energy does not depend on y: it has no gradient to descend")
    (gradient,) = torch.autograd.grad(energies.sum(), point, create_graph=create_graph, allow_unused=True)
    if gradient is None:
        raise ValueError("the energy does not depend on y: it has no gradient to descend")
    return gradient


def _added(functions: list[ScoreFunction]) -> ScoreFunction | None:
    if not functions:
        return None

    def total(y: Tensor, features: Any, t: Tensor | None = None) -> Tensor:
        return functools.reduce(operator.add, (evaluate(function, y, features, t) for function in functions))

    return total
