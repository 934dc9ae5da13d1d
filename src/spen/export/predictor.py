"""x → y_T as a module of named tensors with dynamic sizes: every format of export traces it."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.export._trace
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.tensors import tree_map


@dataclass(frozen=True)
class Size:
    """A dynamic dimension of the exported file, from ``least`` to ``most``; dimensions of one name have one size."""

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
"""The leading dimensions of every input: a ``Size`` is dynamic; a number, None and further dimensions are fixed."""


class Predictor(nn.Module):
    """The tensors of x, in order, ↦ y_T, or with ``descend=False`` Init(F(x))."""

    def __init__(self, model: SPEN, x: Any, *, descend: bool = True) -> None:
        super().__init__()
        self.model = model
        self.descend = descend
        self.structure = pytree.tree_structure(x)

    def forward(self, *tensors: Tensor) -> Tensor:
        x = pytree.tree_unflatten(list(tensors), self.structure)
        return self.model(x).output if self.descend else self.model.feedforward(x)


def frozen(model: SPEN) -> SPEN:
    """A copy on the CPU, in eval mode and without gradients."""
    return copy.deepcopy(model).cpu().eval().requires_grad_(False)


def check_exportable(model: SPEN, *, descend: bool = True) -> None:
    """Refuse a descent whose number of steps depends on the input: a graph takes the same steps for every input."""
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


def named_inputs(x: Any) -> dict[str, Tensor]:
    """The tensors of x by name: the fields of a NamedTuple, the keys of a dict; a lone tensor is ``x``."""
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(x)[0]:
        name = "_".join(str(key).strip(".[]'") for key in path) or "x"
        if not isinstance(leaf, Tensor):
            raise ValueError(f"the input {name} is {type(leaf).__name__}; an exported model takes tensors alone")
        found[name] = leaf
    return found


def prepare(
    model: SPEN, x: Any, shapes: Shapes | None, descend: bool
) -> tuple[SPEN, Any, dict[str, Tensor], list[Shape]]:
    """A frozen copy of the model, x on the CPU, its tensors by name, and the shape of each; all of it checked.

    Without ``shapes`` the batch alone is dynamic: the first dimension of every tensor.
    """
    check_exportable(model, descend=descend)
    x = tree_map(lambda t: t.detach().cpu(), x)
    inputs = named_inputs(x)
    shapes = dict.fromkeys(inputs, (BATCH,)) if shapes is None else shapes
    check_shapes(inputs, shapes)
    return frozen(model), x, inputs, [shapes.get(name, ()) for name in inputs]


def trace(model: SPEN, x: Any, *, shapes: Shapes | None = None, descend: bool = True) -> ExportedProgram:
    """The prediction for inputs like ``x`` as one graph, with dE/dy of every step inside it."""
    copied, x, inputs, each = prepare(model, x, shapes, descend)
    return traced(Predictor(copied, x, descend=descend), list(inputs.values()), each)


def traced(module: nn.Module, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> ExportedProgram:
    """A module of tensors as one graph, with dynamic sizes."""
    sizes = {size for shape in shapes for size in shape if isinstance(size, Size)}
    known = {size: torch.export.Dim(size.name, min=size.least, max=size.most) for size in sizes}
    dynamic = tuple({axis: known[size] for axis, size in enumerate(shape) if size in sizes} for shape in shapes)
    try:
        # Below autograd: torch.export.export records above it, where a layer is one operation, and the values that its
        # derivative saves inside the layer, such as a transposed weight, are lost or become constants.
        with quiet():
            return torch.export._trace._export(
                module, tuple(inputs), dynamic_shapes=(dynamic,), strict=False, pre_dispatch=False
            )
    except (RuntimeError, ValueError) as error:
        raise ValueError(_reason(error)) from error


def check_shapes(inputs: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Refuse shapes that do not fit the example, and an example that torch would take for a fixed size."""
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
                # Torch fixes a dimension of size 1, because it may be broadcast.
                raise ValueError(f"size {size.name} is {now} in the example; give one of {max(2, size.least)} or more")


def _reason(error: Exception) -> str:
    """The constraints in torch's message, as sizes."""
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's exporters: no warnings, no logs below an error, nothing on stdout."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
