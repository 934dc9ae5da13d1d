"""x → y_T as modules of named tensors, with the sizes that stay free: what every format of export starts from."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.export._trace
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from spen.export.quiet import quiet
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.tensors import tree_map

__all__ = [
    "BATCH",
    "Predictor",
    "Shapes",
    "Size",
    "check_exportable",
    "frozen",
    "named_inputs",
    "on_cpu",
    "trace",
    "traced",
]


@dataclass(frozen=True)
class Size:
    """A dimension that stays free in the exported file, and the sizes it may take. One name is one size."""

    name: str
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"the name of a size must be a Python identifier, not {self.name!r}")
        if self.least < 1 or (self.most is not None and self.most <= self.least):
            raise ValueError(f"size {self.name} goes from {self.least} to {self.most}; it must take two values or more")


BATCH = Size("batch")

Shape = tuple[Size | int | None, ...]
Shapes = Mapping[str, Shape]
"""For every input its dimensions from the first on: a ``Size`` is free; a number, None and those left out are fixed."""


class Predictor(nn.Module):
    """ŷ = y_T, or Init's answer where nothing is descended, from the tensors of x in order."""

    def __init__(self, model: SPEN, x: Any, *, descend: bool = True) -> None:
        super().__init__()
        self.model = model
        self.descend = descend
        self.structure = pytree.tree_structure(x)

    def forward(self, *tensors: Tensor) -> Tensor:
        x = pytree.tree_unflatten(list(tensors), self.structure)
        return self.model(x).output if self.descend else self.model.feedforward(x)


def frozen(model: SPEN) -> SPEN:
    """A copy for prediction alone, on the CPU; the model itself is left as it is."""
    return copy.deepcopy(model).cpu().eval().requires_grad_(False)


def check_exportable(model: SPEN, *, descend: bool = True) -> None:
    """A graph takes the same steps for every input; a descent that does not has none."""
    if not descend:
        return
    if not isinstance(model.minimizer, Minimizer):
        kind = type(model.minimizer).__name__
        raise ValueError(f"{kind} cannot be exported: its number of steps depends on the input; use a Minimizer")
    if model.minimizer.rule.backtracks is not None:
        raise ValueError(
            "a rule with backtracks cannot be exported: how often a step is halved depends on the input. Set "
            "model.minimizer.rule.backtracks = None to export a descent that takes every step"
        )
    if model.minimizer.stop is not None:
        raise ValueError(
            f"a descent that stops early ({model.minimizer.stop}) cannot be exported: an exported graph takes the same "
            f"steps for every input. Set model.minimizer.stop = None to export all {model.minimizer.rule.steps} steps"
        )


def on_cpu(x: Any) -> Any:
    """The same input where a frozen model is."""
    return tree_map(lambda t: t.detach().cpu(), x)


def named_inputs(x: Any) -> dict[str, Tensor]:
    """The tensors of x by name: the fields of a NamedTuple, the keys of a dict; a lone tensor is ``x``."""
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(x)[0]:
        name = "_".join(_part(key) for key in path) or "x"
        if not isinstance(leaf, Tensor):
            raise ValueError(f"the input {name} is {type(leaf).__name__}; an exported model takes tensors alone")
        found[name] = leaf
    return found


def trace(model: SPEN, x: Any, *, shapes: Shapes | None = None, descend: bool = True) -> ExportedProgram:
    """The prediction for inputs like ``x`` as one graph, with dE/dy of every step inside it.

    Without ``shapes`` the batch alone is free: the first dimension of every tensor.
    """
    check_exportable(model, descend=descend)
    inputs = named_inputs(on_cpu(x))
    shapes = dict.fromkeys(inputs, (BATCH,)) if shapes is None else shapes
    check_shapes(inputs, shapes)
    predictor = Predictor(frozen(model), x, descend=descend)
    return traced(predictor, list(inputs.values()), [shapes.get(name, ()) for name in inputs])


def traced(module: nn.Module, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> ExportedProgram:
    """A module of tensors as one graph, for all sizes that are free."""
    dimensions: dict[Size, Any] = {}

    def free(size: Size) -> Any:
        if size not in dimensions:
            dimensions[size] = torch.export.Dim(size.name, min=size.least, max=size.most)
        return dimensions[size]

    dynamic = tuple({axis: free(size) for axis, size in enumerate(shape) if isinstance(size, Size)} for shape in shapes)
    try:
        # Below autograd: torch.export.export records above it, where a layer is one operation and what its derivative
        # remembers from inside the layer, such as a transposed weight, is lost or frozen as a constant.
        with quiet():
            return torch.export._trace._export(
                module, tuple(inputs), dynamic_shapes=(dynamic,), strict=False, pre_dispatch=False
            )
    except (RuntimeError, ValueError) as error:
        raise ValueError(_reason(error)) from error


def check_shapes(inputs: Mapping[str, Tensor], shapes: Shapes) -> None:
    """The shapes fit the example, and the example can stand for all sizes."""
    unknown = sorted(set(shapes) - set(inputs))
    if unknown:
        raise ValueError(f"there is no input {', '.join(unknown)}; there are {', '.join(inputs)}")
    sizes: dict[str, int] = {}
    for name, tensor in inputs.items():
        wanted = shapes.get(name, ())
        if len(wanted) > tensor.dim():
            raise ValueError(f"{name} has {tensor.dim()} dimensions, but {len(wanted)} are given for it")
        for size, now in zip(wanted, tensor.shape, strict=False):
            if isinstance(size, int) and size != now:
                raise ValueError(f"{name} has a size of {now} in the example where {size} is given for it")
            if not isinstance(size, Size):
                continue
            if sizes.setdefault(size.name, now) != now:
                raise ValueError(f"size {size.name} is {sizes[size.name]} and {now} in the example")
            if now < max(2, size.least):
                # Torch takes a dimension of one for a fixed one, to be broadcast.
                raise ValueError(f"size {size.name} is {now} in the example; give one of {max(2, size.least)} or more")


def _part(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _reason(error: Exception) -> str:
    """What torch asks for, as sizes."""
    text = str(error)
    wanted = []
    for name, least, most, fixed in re.findall(
        r"^\s*(\w+) = (?:Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)|(\d+))\s*$", text, re.MULTILINE
    ):
        bounds = "".join(f", {key}={value}" for key, value in (("least", least), ("most", most)) if value)
        wanted.append(f"{name} is always {fixed} in it" if fixed else f'Size("{name}"{bounds}) would do')
    if wanted:
        return f"the model cannot be exported for all of these sizes: {'; '.join(wanted)}"
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    return f"the model cannot be exported: {lines[0][:300] if lines else type(error).__name__}"
