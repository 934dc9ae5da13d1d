"""torch.export programs and compiled packages, and the check that every written file goes through."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import spen
from spen.domains import Reals, Simplex
from spen.export import BATCH, TOLERANCE, Exportable, Size, export_program, write
from spen.rules import GradientDescent, Momentum
from tests.export.small import chain

SHAPES = {"x": (BATCH, Size("length", 3))}


def exportable(model: spen.SPEN) -> Exportable:
    def example(seed: int) -> torch.Tensor:
        batch, length = ((2, 5), (3, 9), (1, 4))[seed % 3]
        return torch.randn(batch, length, 3, generator=torch.Generator().manual_seed(seed))

    return Exportable(model=model, example=example, shapes=SHAPES)


def test_a_program_runs_on_other_sizes(tmp_path: Path) -> None:
    model = chain(Simplex("mirror"), Momentum(3, 0.3))
    written = write(exportable(model), tmp_path / "chain.pt2")
    assert (written.format, written.inputs) == ("torch.export", {"x": ["batch", "length", 3]})
    assert written.difference is not None
    assert written.difference < TOLERANCE
    program = torch.export.load(tmp_path / "chain.pt2").module()
    for batch, length in ((4, 11), (1, 3)):
        x = torch.randn(batch, length, 3)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x).output, rtol=0, atol=TOLERANCE)
    with pytest.raises((RuntimeError, AssertionError)):
        program(torch.randn(2, 2, 3))  # shorter than what was promised


@pytest.mark.slow
def test_a_compiled_package_runs_on_other_sizes(tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("AOTInductor needs a C++ compiler")
    model = chain(Reals(), GradientDescent(2, 0.3))
    written = write(exportable(model), tmp_path / "chain.pt2", compiled=True)
    assert written.format == "aotinductor"
    package = torch._inductor.aoti_load_package(str(tmp_path / "chain.pt2"))
    x = torch.randn(4, 11, 3)
    with torch.no_grad():
        torch.testing.assert_close(package(x), model(x).output, rtol=0, atol=TOLERANCE)


def test_no_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError) as error:
        write(exportable(chain(Reals(), GradientDescent(1))), tmp_path / "chain.pt2", compiled=True)
    assert str(error.value) == (
        "compiling takes a C++ compiler, and there is none here: install g++, or leave --compile away"
    )


def test_wrong_names_are_told(tmp_path: Path) -> None:
    thing = exportable(chain(Reals(), GradientDescent(1)))
    with pytest.raises(ValueError, match=r"chain.pb should end in .onnx \(onnxruntime\) or .pt2 \(torch\)"):
        write(thing, tmp_path / "chain.pb")
    with pytest.raises(ValueError, match=r"only a .pt2 file is compiled; chain.onnx is none"):
        write(thing, tmp_path / "chain.onnx", compiled=True)
    with pytest.raises(ValueError, match=r"a program of torch is a .pt2 file, not 'chain.onnx'"):
        export_program(thing.model, thing.example(0), tmp_path / "chain.onnx")


def test_a_file_that_answers_otherwise_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: spen.SPEN, x: torch.Tensor, path: Path, **options: object) -> Path:
        """As if dE/dy had become a constant: the step that the traced input would take."""
        with torch.no_grad():
            model.features.layer.bias.add_(1)  # type: ignore[union-attr, operator]
        export_program(model, x, path, shapes=SHAPES)
        with torch.no_grad():
            model.features.layer.bias.sub_(1)  # type: ignore[union-attr, operator]
        return path

    monkeypatch.setattr("spen.export.exportable.export_program", wrong)
    with pytest.raises(RuntimeError, match="the exported file gives other answers than the model, by up to"):
        write(exportable(chain(Reals(), GradientDescent(1))), tmp_path / "chain.pt2")
    assert not list(tmp_path.iterdir())
