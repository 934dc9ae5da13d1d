"""dp-3 and the role labeller as ONNX files, run where there is no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spen.export import TOLERANCE, write
from spen.export.predictor import named_inputs
from spen.models import open_model
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.energy import NoisyObservation, Observation
from spen.tasks.denoising.losses import observation
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.predict import Labeller
from tests.cli.world import CONLLU

RUNNER = Path(__file__).parent / "run_onnx.py"


def save_cases(path: Path, cases: Sequence[tuple[Any, torch.Tensor]]) -> None:
    arrays = {f"{i}/{name}": t.numpy() for i, (x, _) in enumerate(cases) for name, t in named_inputs(x).items()}
    np.savez(path, **arrays, **{f"{i}/y": y.detach().numpy() for i, (_, y) in enumerate(cases)})


def images() -> list[tuple[Observation, torch.Tensor]]:
    """Parts of a room, alone and as a batch; none has the size that was traced."""
    whole = observation(Rooms("test", 1).frame(0))
    one = Observation(*(part[None, :, :60, :80] for part in whole))
    odd = Observation(*(part[None, :, 5:42, 3:100] for part in whole))
    four = Observation(*(torch.stack([part[:, k : k + 24, k : k + 32] for k in (0, 50, 100, 150)]) for part in whole))
    denoise = open_model("dp-3").denoise
    return [(x, denoise(x)) for x in (one, odd, four)]


def sentences() -> list[tuple[Any, torch.Tensor]]:
    """Batches of parsed sentences: one alone, the longest ones, many of all kinds with padding."""
    labeller = Labeller.open("srl-grammar")
    corpus = labeller.corpus(make_corpus(40, seed=3))
    usable = corpus.usable
    long = usable[np.argsort(-corpus.predicates[usable], kind="stable")]
    with torch.no_grad():
        return [(x, labeller.model(x).output) for x, _ in map(corpus.batch, (usable[:1], long[:4], usable[:20]))]


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("dp-3", images(), tmp_path_factory.mktemp("denoiser"))


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("srl-grammar", sentences(), tmp_path_factory.mktemp("labeller"))


def exported(name: str, cases: Sequence[tuple[Any, torch.Tensor]], folder: Path) -> Path:
    """The file, with cases beside it under the same name."""
    write(open_model(name).exportable(), folder / f"{name}.onnx")
    save_cases(folder / f"{name}.npz", cases)
    return folder / f"{name}.onnx"


def run(python: Path | str, file: Path, *options: str) -> dict[str, Any]:
    command = [str(python), str(RUNNER), str(file), str(file.with_suffix(".npz")), *options]
    result: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(result["differences"]) == 3
    assert len({tuple(shape) for shape in result["shapes"]}) == 3
    assert max(result["differences"]) < TOLERANCE
    return result


def test_the_denoiser_runs_without_torch(denoiser: Path) -> None:
    assert run(sys.executable, denoiser, "--forbid")["torch"] is False


def blocks() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "export.md"
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_shows_how_to_denoise(denoiser: Path, tmp_path: Path) -> None:
    (tmp_path / "dp-3.onnx").symlink_to(denoiser)
    frame = Rooms("test", 1).frame(0)
    np.save(tmp_path / "depth.npy", (4000 * frame.noisy[0] * frame.valid[0]).numpy())
    (code,) = (block for block in blocks() if "depth.npy" in block)
    assert len(code.strip().splitlines()) <= 10
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    clean = torch.from_numpy(np.load(tmp_path / "clean.npy")) / 4000
    expected = open_model("dp-3").denoise(Observation(*(part[None] for part in observation(frame))))[0, 0]
    torch.testing.assert_close(clean, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_the_page_shows_how_to_denoise_at_a_level_of_noise(tmp_path: Path) -> None:
    write(open_model("photo").exportable(), tmp_path / "photo.onnx")
    grey = 255 * torch.rand(24, 31, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "grey.npy", grey.numpy())
    (code,) = (block for block in blocks() if "grey.npy" in block)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    image = grey[None, None] / 255
    x = NoisyObservation(image, torch.ones_like(image), torch.full((1, 1, 1, 1), 25 / 255))
    with torch.no_grad():
        expected = open_model("photo").model(x).output[0, 0]
    clean = torch.from_numpy(np.load(tmp_path / "clean.npy")) / 255
    torch.testing.assert_close(clean, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_the_page_shows_how_to_label(labeller: Path, tmp_path: Path) -> None:
    (tmp_path / "srl-grammar.onnx").symlink_to(labeller)
    (tmp_path / "sentences.conllu").write_text(CONLLU, encoding="utf-8")
    encode_them, label_them = (block for block in blocks() if "batch.npz" in block)
    subprocess.run([sys.executable, "-c", encode_them], cwd=tmp_path, check=True)
    found = subprocess.run([sys.executable, "-c", label_them], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout.splitlines() == ["0 0 [0 1] A0", "0 0 [2 4] A1"]


@pytest.mark.slow
def test_the_role_labeller_runs_without_torch(labeller: Path) -> None:
    assert run(sys.executable, labeller, "--forbid")["torch"] is False
