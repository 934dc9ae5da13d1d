"""argmin_y E(y; F(x)) by unrolled descent, as a module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from spen.arguments import require
from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential, check_features, identity, is_replica
from spen.descent.trajectory import Trajectory
from spen.gradients.auto import Auto
from spen.gradients.second_order import Graph
from spen.gradients.sharded import gathered
from spen.gradients.snapshots import untouched
from spen.protocols import Convergence, Domain, GradientStrategy, StepRule
from spen.rules import Extended
from spen.tensors import tensors_of, tree_map


def _not_traced(method: Callable[..., Trajectory]) -> Callable[..., Trajectory]:
    """Break the graph of torch.compile(model) at the method, which calls autograd: Dynamo cannot trace that.

    ``torch.compiler.disable`` does the same, but imports the compiler, which takes seconds.
    """

    @functools.wraps(method)
    def called(*arguments: Any) -> Trajectory:
        dynamo = None if torch.compiler.is_exporting() else sys.modules.get("torch._dynamo")
        return (method if dynamo is None else dynamo.disable(method))(*arguments)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]
    return called


class Minimizer(nn.Module):
    """ŷ ≈ argmin_{y ∈ domain} E(y; features), by ``rule``, differentiated by ``gradient`` (Sec. 3).

    ``stop`` freezes each example once it has converged. ``keep_gradients`` stores the gradient of every step in the
    trajectory, for a penalty on it: dE/dy, or dE/dlogits over a ``through_logits`` domain. Training and prediction use
    the same configuration.
    """

    def __init__(
        self,
        domain: Domain,
        rule: StepRule,
        gradient: GradientStrategy | None = None,
        stop: Convergence | None = None,
        *,
        keep_gradients: bool = False,
    ) -> None:
        super().__init__()
        order = "the arguments are Minimizer(domain, rule, gradient, stop)"
        require(domain, Domain, "domain", "a domain such as Reals()", order)
        require(rule, StepRule, "rule", "a step rule such as GradientDescent(steps=10)", order)
        if gradient is not None:
            require(gradient, GradientStrategy, "gradient", "a strategy such as Exact()", order)
        if stop is not None:
            require(
                stop, Convergence, "stop", "a test with a method converged(before, after), such as RelativeChange(1e-3)"
            )
        self.domain = domain
        self.rule = rule
        self.gradient = Auto() if gradient is None else gradient
        self.stop = stop
        self.keep_gradients = keep_gradients
        self._extended: dict[int, Extended] = {}  # cached: programs are guarded by the identity of the rule

    def forward(self, energy: nn.Module, features: Any, start: Tensor, *, steps: int | None = None) -> Trajectory:
        """Descend ``energy`` from ``start`` (what Init returned, one row per example).

        ``steps`` replaces the number of steps of the rule: further steps repeat its last one, with its rate.
        """
        check_features(features, start.shape[0])
        if not torch.is_floating_point(start):
            raise ValueError(f"Init must return floating-point numbers to descend from, not {start.dtype}")
        if torch._C._are_functorch_transforms_active():
            raise ValueError(
                "torch.func (vmap, grad, jvp) cannot differentiate or map a descent, which calls autograd itself: give "
                "the model a batch, and use backward() or torch.autograd.grad"
            )
        if forward_ad._current_level >= 0 and _has_tangents(energy, features, start):
            raise ValueError(
                "forward-mode differentiation (torch.autograd.forward_ad) does not pass through a descent: use "
                "backward() or torch.autograd.grad"
            )
        if torch.is_autocast_enabled(start.device.type) and start.dtype.itemsize < 4:
            start = start.float()  # autocast lowers the energy's products; y would lose its small steps
        descend = functools.partial(self._descend, self._rule(steps))
        if not torch.is_inference_mode_enabled():
            return descend(energy, features, start)
        # Inference tensors cannot enter autograd, and a descent needs dE/dy: it works on ordinary copies.
        with torch.inference_mode(False), torch.no_grad():
            return descend(energy, tree_map(torch.clone, features), start.clone())

    def _rule(self, steps: int | None) -> StepRule:
        if steps is None or steps == self.rule.steps:
            return self.rule
        found = self._extended.get(steps)
        if found is None or found.rule is not self.rule or found.backtracks != self.rule.backtracks:
            found = self._extended[steps] = Extended(self.rule, steps)
        return found

    def extra_repr(self) -> str:
        return f"gradient={self.gradient}, stop={self.stop}" + ", keep_gradients=True" * self.keep_gradients

    @_not_traced
    def _descend(self, rule: StepRule, energy: nn.Module, features: Any, start: Tensor) -> Trajectory:
        descend = Descend(self.domain, rule, self.stop, self.keep_gradients)
        with gathered(energy):
            potential = Potential.of(energy, features, self.domain.output if self.domain.through else identity)
            path = self._run(descend, potential, start)
        last = potential.at(rule.energy_step(rule.steps - 1))
        return Trajectory(path, self.domain, rule.steps, last, start, gradients=self.keep_gradients)

    def _run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        learns = chain(potential.parameters(), potential.feature_tensors(), [start], self.parameters())
        # parameters() of a replica by nn.DataParallel is empty, but they may require a gradient.
        wanted = any(t.requires_grad for t in learns) or is_replica(potential.energy)
        if torch.is_grad_enabled() and (wanted or _reads_unknown(descend, potential, start)):
            # An Init that expands one vector returns rows that share memory, into which no gradient can be written.
            own = start.contiguous() if 0 in start.stride() else start
            return self.gradient.run(descend, potential, own)
        with torch.no_grad():
            return self.gradient.predict(descend, potential, start)


def _has_tangents(energy: nn.Module, features: Any, start: Tensor) -> bool:
    """Whether a tensor is a dual number of forward mode."""
    tensors = chain([start], tensors_of(features), energy.parameters())
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _reads_unknown(descend: Descend, potential: Potential, start: Tensor) -> bool:
    """Whether the energy reads a tensor that requires a gradient and is none of its parameters."""
    if not start.shape[0]:
        return False
    found: list[Tensor] = []

    def inspect(potential: Potential, energies: Tensor, point: Tensor) -> None:
        found.extend(leaf for leaf in Graph.of(energies).leaves if leaf is not point)

    with untouched(start.device, potential.energy):
        potential.gradient(descend.first_point(start), inspect)
    return bool(found)
