"""A trained model with what its export needs, the files that are written of it, and the check of each file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from spen.export.onnx import export_onnx
from spen.export.predictor import Predictor, Shapes, Size, check_exportable, frozen, named_inputs, quiet, trace
from spen.model import SPEN
from spen.pretrained import CONFIG, WEIGHTS, read_config, write_config
from spen.storage import replacing, save_weights

if TYPE_CHECKING:
    from spen.models import SavedModel

TOLERANCE = 1e-5
"""The largest difference allowed between the outputs of an exported file and those of the model."""


@dataclass(frozen=True)
class Exportable:
    """What to export and from which inputs. ``example(0)`` is traced; ``example(1)`` and on check the result."""

    model: SPEN
    example: Callable[[int], Any]
    shapes: Shapes
    descend: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """Custom operations of the model, written with torch's."""
    translations: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """The same, written with ONNX's."""


@dataclass(frozen=True)
class Written:
    """A file, and the largest difference from the model on inputs of other sizes than the one that was traced."""

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
    check_exportable(thing.model, descend=thing.descend)  # before an example is made
    x = thing.example(0)
    common: dict[str, Any] = {"shapes": thing.shapes, "descend": thing.descend}
    if path.suffix == ".onnx":
        export_onnx(thing.model, x, path, metadata=thing.metadata, translations=thing.translations, **common)
        run, names, kind = *_onnx(path), "onnx"
    else:
        export_program(thing.model, x, path, compiled=compiled, decompositions=thing.decompositions, **common)
        run, names = _program(path, compiled), list(named_inputs(x))
        kind = "aotinductor" if compiled else "torch.export"
    difference = _difference(thing, run, range(1, checks + 1))
    if not difference <= TOLERANCE:
        path.unlink()
        raise RuntimeError(
            f"the exported file gives other answers than the model, by up to {difference:.1e}, on inputs of other "
            "sizes than the one that was traced; it has been removed"
        )
    return Written(path, kind, _described(thing, x, names), difference)


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

    ``compiled`` compiles it for the processor of this machine, as a package for ``torch._inductor.aoti_load_package``
    and its C++ counterpart; that needs a C++ compiler. Inputs come in the order of x's tensors; ``shapes`` and
    ``descend`` are as in ``export_onnx``. ``decompositions`` say how custom operations of the model are written with
    torch's.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"a program of torch is a .pt2 file, not {path.name!r}")
    if compiled and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise ValueError("compiling takes a C++ compiler, and there is none here: install g++, or leave --compile away")
    program = trace(model, x, shapes=shapes, descend=descend)
    with replacing(path) as temporary, quiet():
        if decompositions:
            program = program.run_decompositions(dict(decompositions))
        if compiled:
            torch._inductor.aoti_compile_and_package(program, package_path=str(temporary))
        else:
            torch.export.save(program, temporary)
    return path


def save_folder(thing: Exportable, folder: Path, half: bool, about: str, saved: SavedModel) -> Written:
    """Write config.json and model.safetensors, a folder that every command opens; ``half`` stores matrices in float16.

    A folder with other files, or with the model of another library, is refused.
    """
    others = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    if CONFIG in others:
        read_config(folder)  # refuses that of another library
        others -= {CONFIG, WEIGHTS}
    if others:
        raise ValueError(f"{folder} holds other files ({min(others)}); give a folder that is empty or new")
    training = {key: saved.run[key] for key in ("seed", "hardware", "versions", "commit") if key in saved.run}
    about = about or saved.about
    write_config(folder, thing.model.origin, **({"about": about} if about else {}), **training)
    weights = thing.model.state_dict()
    if half:
        weights = {n: w.half() if w.is_floating_point() and w.dim() > 1 else w for n, w in weights.items()}
    save_weights(weights, folder / WEIGHTS, {"format": "pt"})
    return Written(folder, "pretrained", {}, None)


Run = Callable[[dict[str, torch.Tensor]], NDArray[Any]]


def _onnx(path: Path) -> tuple[Run, list[str]]:
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
    """The shape of every input, dynamic sizes by name."""
    described: dict[str, list[int | str]] = {name: list(named_inputs(x)[name].shape) for name in names}
    for name, shape in described.items():
        for axis, size in enumerate(thing.shapes.get(name, ())):
            if isinstance(size, Size):
                shape[axis] = size.name
    return described
