"""One step of the descent, traced once: T steps are T copies of it, so the time of an export does not grow with T.

    Start    x ↦ (features, z_0, h_0)
    Step     (η_t, features, z_t, h_t) ↦ (y_{t+1}, z_{t+1}, h_{t+1})

This works for rules whose steps differ only in their rates, and energies without ``knows_step``. Other descents are
traced from end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from spen.descent.loop import Descend
from spen.descent.potential import Potential, identity
from spen.energies.compose import knows_step
from spen.export.predictor import Shape, Size, named_inputs, traced
from spen.model import SPEN
from spen.rules import GradientDescent, LearnedOptimizer, Momentum
from spen.tensors import flatten

STEADY = (GradientDescent, Momentum, LearnedOptimizer)
"""Rules whose steps differ only in the rate, ``self.rates()[t]``. With dampening the first step differs."""


@dataclass(frozen=True)
class Parts:
    """The two graphs, and what connects them."""

    start: ExportedProgram
    step: ExportedProgram
    rates: Tensor  # (T,)
    moving: int  # how many tensors go from step to step: z and the state of the rule
    shape: Shape  # of z, and so of y


def trace_parts(model: SPEN, x: Any, shapes: Sequence[Shape]) -> Parts | None:
    """The graphs of a frozen model, or None where its steps differ. ``shapes`` holds one for each tensor of x."""
    rule = model.minimizer.rule
    if type(rule) not in STEADY or getattr(rule, "dampening", False):  # a derived class may do anything
        return None
    if knows_step(model.energy):
        return None
    assert isinstance(rule, STEADY)
    inputs = named_inputs(x)
    start = Start(model, x)
    with torch.no_grad():
        first = start(*inputs.values())
    if not all(isinstance(part, Tensor) for part in first):  # features may hold plain values
        return None
    began = traced(start, list(inputs.values()), shapes)
    between = output_shapes(began, shapes)
    if between is None:
        return None
    assert start.features is not None
    fixed, rates = start.features.num_leaves, rule.rates().detach()
    # Features come before z: torch takes sizes from the first input that has them, and features are the same in every
    # step.
    step = traced(Step(model, start.features), [rates[:1], *first], [(), *between])
    return Parts(began, step, rates, len(first) - fixed, between[fixed])


class Start(nn.Module):
    """x ↦ (the tensors of F(x), z_0, h_0)."""

    def __init__(self, model: SPEN, x: Any) -> None:
        super().__init__()
        self.model = model
        self.structure = pytree.tree_structure(x)
        self.features: pytree.TreeSpec | None = None  # known once it has run

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        features = self.model.features(pytree.tree_unflatten(list(tensors), self.structure))
        leaves, self.features = flatten(features)
        z = self.model.minimizer.domain.enter(self.model.init(features))
        return (*leaves, z, *self.model.minimizer.rule.begin(z))


class Step(nn.Module):
    """(η, features, z, h) ↦ (y, z, h): dE/dy, the rule and the domain, as the loop takes them."""

    def __init__(self, model: SPEN, features: pytree.TreeSpec) -> None:
        super().__init__()
        self.energy, self.domain, self.rule = model.energy, model.minimizer.domain, model.minimizer.rule
        self.features = features

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        rate, fixed = tensors[0], self.features.num_leaves
        features = pytree.tree_unflatten(list(tensors[1 : fixed + 1]), self.features)
        z, *state = tensors[fixed + 1 :]
        potential = Potential.of(self.energy, features, self.domain.output if self.domain.through else identity)
        kept, self.rule.rates = self.rule.rates, _Given(rate)  # type: ignore[assignment]
        try:
            with torch.no_grad():
                descend = Descend(self.domain, self.rule)
                gradient, _ = potential.detached().gradient(descend.point(z, self.domain.output(z)))
                z, after = descend.step(0, z, tuple(state), gradient, None)
        finally:
            self.rule.rates = kept
        return (self.domain.output(z), z, *after)


class _Given(nn.Module):
    """Replaces the rates of a rule while one step is traced: the rate is an input."""

    def __init__(self, rate: Tensor) -> None:
        super().__init__()
        self.rate = [rate]  # in a list, so that it is no buffer

    def forward(self) -> Tensor:
        return self.rate[0]


def output_shapes(program: ExportedProgram, shapes: Sequence[Shape]) -> list[Shape] | None:
    """The dynamic sizes of the outputs; None where one is computed from several, such as height·width."""
    known = _symbols(program, shapes)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    found: list[Shape] = []
    for node in output.args[0]:
        sizes = node.meta["val"].shape
        if any(not isinstance(n, int) and str(n) not in known for n in sizes):
            return None
        found.append(tuple(None if isinstance(n, int) else known[str(n)] for n in sizes))
    return found


def _symbols(program: ExportedProgram, shapes: Sequence[Shape]) -> dict[str, Size]:
    """Torch's symbols of the dynamic sizes."""
    names = set(program.graph_signature.user_inputs)
    tensors = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return {
        str(tensor.shape[axis]): size
        for tensor, shape in zip(tensors, shapes, strict=True)
        for axis, size in enumerate(shape)
        if isinstance(size, Size)
    }
