"""torch.export programs, and packages that AOTInductor has compiled: both need torch, neither needs this library."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from spen.export.predictor import Shapes, trace
from spen.export.quiet import quiet
from spen.model import SPEN
from spen.storage import replacing

__all__ = ["export_program"]


def export_program(
    model: SPEN,
    x: Any,
    path: Path | str,
    *,
    shapes: Shapes | None = None,
    descend: bool = True,
    compiled: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Path:
    """Write the predictor as a ``torch.export`` program (``torch.export.load(path).module()`` runs it).

    ``compiled`` compiles it for this machine's processor, as a package for ``torch._inductor.aoti_load_package`` and
    its C++ twin; that takes a C++ compiler. Inputs come in the order of x's tensors; ``shapes`` and ``descend`` are as
    in ``export_onnx``. ``decompositions`` say how operations of the model's own are written with torch's.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"a program of torch is a .pt2 file, not {path.name!r}")
    if compiled:
        _require_compiler()
    program = trace(model, x, shapes=shapes, descend=descend)
    with replacing(path) as temporary, quiet():
        if decompositions:
            program = program.run_decompositions(dict(decompositions))
        if compiled:
            torch._inductor.aoti_compile_and_package(program, package_path=str(temporary))
        else:
            torch.export.save(program, temporary)
    return path


def _require_compiler() -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise ValueError("compiling takes a C++ compiler, and there is none here: install g++, or leave --compile away")
