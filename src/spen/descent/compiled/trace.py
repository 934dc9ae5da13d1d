"""∇E and H v as graphs of plain tensor operations, read off one real evaluation.

Derivatives are taken while tracing, so the program has no autograd left in it: it can be simplified, fused and
captured, and an energy that is compiled this way never has to be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spen import trees
from spen.descent.compiled.simplify import simplified, speaks_to_host
from spen.descent.compiled.within import within
from spen.descent.gradients.second_order import NotTwiceDifferentiable, Products
from spen.descent.potential import Potential

Flat = Callable[..., list[Tensor]]
Lowering = Callable[[GraphModule, list[Tensor]], Flat]


class NotTraceable(RuntimeError):
    """The energy cannot be written down as a fixed list of operations."""


class Program:
    """∇E and the products of one strategy, for one energy and inputs of one shape.

    Parameters and buffers are inputs of the program: they may change in value, not in shape. Numbers that are no
    tensors are part of it.
    """

    def __init__(
        self,
        potential: Potential,
        point: Tensor,
        product: Callable[[Potential, Tensor, Tensor], Products],
        lowering: Lowering,
    ) -> None:
        self._names = [n for n, _ in potential.energy.named_parameters()]
        self._names += [n for n, _ in potential.energy.named_buffers()]
        self._present: list[bool] = []
        self._spec = pytree.tree_flatten(potential.features)[1]
        self._fixed = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in pytree.tree_leaves(potential.features)]
        wants = [leaf.requires_grad for leaf in trees.tensors(potential.features)]
        inputs = [point.detach(), *self._inputs(potential)]
        rebuilt = self._rebuilder(potential, wants)

        def gradient(at: Tensor, *tensors: Tensor) -> list[Tensor]:
            return rebuilt(tensors, lambda bound: list(bound.gradient(at)))

        def products(at: Tensor, direction: Tensor, *tensors: Tensor) -> list[Tensor]:
            at_point, rest = rebuilt(tensors, lambda bound: product(bound, at, direction))
            self._present = [bar is not None for bar in (at_point, *rest)]
            return [bar.detach() for bar in (at_point, *rest) if bar is not None]

        both = (inputs, [inputs[0], torch.ones_like(inputs[0]), *inputs[1:]])
        graphs = [_traced(gradient, both[0], potential), _traced(products, both[1], potential)]
        self.capturable = not any(speaks_to_host(graph) for graph in graphs)
        """Whether a CUDA graph may hold the programs: nothing in them waits for the device or reads host memory."""
        with torch.no_grad():
            self._gradient, self._product = map(lowering, graphs, both)

    def gradient(self, potential: Potential, point: Tensor) -> tuple[Tensor, Tensor]:
        """(∇E, E) at a point: takes the place of ``Potential.gradient``."""
        with torch.no_grad():
            gradient, energies = self._gradient(point.detach(), *self._inputs(potential))
        return gradient, energies

    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        """H v and ∂⟨v, ∇E⟩: takes the place of the strategy's own product."""
        with torch.no_grad():
            found = iter(self._product(point.detach(), direction.contiguous(), *self._inputs(potential)))
        at_point, *rest = (next(found) if present else None for present in self._present)
        return at_point, rest

    def _inputs(self, potential: Potential) -> list[Tensor]:
        energy = potential.energy
        own = [*(p.detach() for p in energy.parameters()), *energy.buffers()]
        return [*(f.detach() for f in trees.tensors(potential.features)), *own]

    def _rebuilder(
        self, potential: Potential, wants: list[bool]
    ) -> Callable[[tuple[Tensor, ...], Callable[[Potential], Any]], Any]:
        learns = {n: p.requires_grad for n, p in potential.energy.named_parameters()}

        def rebuilt(tensors: tuple[Tensor, ...], function: Callable[[Potential], Any]) -> Any:
            leaves = [t.detach().requires_grad_(w) for t, w in zip(tensors, wants, strict=False)]
            named = {
                n: t.detach().requires_grad_(learns.get(n, False))
                for n, t in zip(self._names, tensors[len(wants) :], strict=True)
            }
            moving = iter(leaves)
            features = pytree.tree_unflatten(
                [next(moving) if fixed is None else fixed[0] for fixed in self._fixed], self._spec
            )
            learned = tuple(named[n] for n in learns if learns[n])
            bound = Potential(potential.energy, features, potential.view, learned)  # type: ignore[arg-type]
            return within(potential.energy, named, lambda: function(bound))

        return rebuilt


def _traced(function: Callable[..., list[Tensor]], inputs: list[Tensor], potential: Potential) -> GraphModule:
    try:
        return simplified(make_fx(function)(*inputs))
    except NotTwiceDifferentiable:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotTraceable(
            f"the energy {type(potential.energy).__name__} cannot be traced: {reason[:300]} "
            "Use the strategy inside Compiled by itself"
        ) from error
