"""A trained model with all that its export needs to know, in whatever format, and the proof that it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spen.export.onnx import export_onnx, require_onnx
from spen.export.predictor import Predictor, Shapes, Size, check_exportable, frozen, named_inputs
from spen.export.program import export_program
from spen.model import SPEN

__all__ = ["TOLERANCE", "Exportable", "Written", "write"]

TOLERANCE = 1e-5
"""How far the answer of an exported file may lie from the model's own."""


@dataclass(frozen=True)
class Exportable:
    """What to export and from which inputs. ``example(0)`` is traced; ``example(1)`` and on check the result."""

    model: SPEN
    example: Callable[[int], Any]
    shapes: Shapes
    descend: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """Operations of the model's own, written with torch's."""
    translations: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """The same, written with ONNX's."""


@dataclass(frozen=True)
class Written:
    """A file and how far its answers lie from the model's, on inputs of other sizes than the one that was traced."""

    path: Path
    format: str
    inputs: dict[str, list[int | str]]
    difference: float | None  # None where the format holds the model itself


def write(thing: Exportable, path: Path | str, *, compiled: bool = False, checks: int = 2) -> Written:
    """Export to ONNX (FILE.onnx) or torch (FILE.pt2), run the file on other inputs, and refuse it if it is wrong."""
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"{path.name} should end in .onnx (onnxruntime) or .pt2 (torch)")
    if compiled and path.suffix != ".pt2":
        raise ValueError(f"only a .pt2 file is compiled; {path.name} is none")
    check_exportable(thing.model, descend=thing.descend)
    x = thing.example(0)
    if path.suffix == ".onnx":
        export_onnx(
            thing.model,
            x,
            path,
            shapes=thing.shapes,
            descend=thing.descend,
            metadata=thing.metadata,
            translations=thing.translations,
        )
        run, names, kind = *_onnx(path), "onnx"
    else:
        export_program(
            thing.model,
            x,
            path,
            shapes=thing.shapes,
            descend=thing.descend,
            compiled=compiled,
            decompositions=thing.decompositions,
        )
        run, names, kind = (
            _program(path, compiled),
            list(named_inputs(x)),
            "aotinductor" if compiled else "torch.export",
        )
    difference = _difference(thing, run, range(1, checks + 1))
    if not difference <= TOLERANCE:
        path.unlink()
        raise RuntimeError(
            f"the exported file gives other answers than the model, by up to {difference:.1e}, on inputs of other "
            "sizes than the one that was traced; it has been removed"
        )
    return Written(path, kind, _described(thing, x, names), difference)


Run = Callable[[dict[str, torch.Tensor]], NDArray[Any]]


def _onnx(path: Path) -> tuple[Run, list[str]]:
    require_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    wanted = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(["y"], {name: inputs[name].numpy() for name in wanted})[0], wanted


def _program(path: Path, compiled: bool) -> Run:
    loaded: Callable[..., torch.Tensor]
    loaded = torch._inductor.aoti_load_package(str(path)) if compiled else torch.export.load(path).module()

    def run(inputs: dict[str, torch.Tensor]) -> NDArray[Any]:
        with torch.no_grad():
            return loaded(*inputs.values()).numpy()

    return run


def _difference(thing: Exportable, run: Run, seeds: range) -> float:
    model = frozen(thing.model)
    largest = 0.0
    for seed in seeds:
        x = thing.example(seed)
        inputs = named_inputs(x)
        with torch.no_grad():
            expected = Predictor(model, x, descend=thing.descend)(*inputs.values()).numpy()
        found = run(inputs)
        if found.shape != expected.shape:
            return float("inf")
        # NaN compares as different.
        largest = float(np.max(np.abs(found - expected), initial=largest)) if expected.size else largest
    return largest


def _described(thing: Exportable, x: Any, names: list[str]) -> dict[str, list[int | str]]:
    """The shape of every input, free sizes by name."""
    described: dict[str, list[int | str]] = {}
    tensors = named_inputs(x)
    for name in names:
        tensor, free = tensors[name], thing.shapes.get(name, ())
        sizes = [*free, *[None] * (tensor.dim() - len(free))]
        described[name] = [
            size.name if isinstance(size, Size) else n for n, size in zip(tensor.shape, sizes, strict=True)
        ]
    return described
