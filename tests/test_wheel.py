"""The wheel: what is in it, how large it is, and that `spen` works from it. `make wheel` does the same from nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("build", reason="building a wheel needs the extra `dev`")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that leftovers of an earlier build are not taken for the package."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist", place],
        check=True,
        capture_output=True,
    )
    (built,) = (place / "dist").glob("*.whl")
    return built


def test_it_holds_what_the_commands_read(wheel: Path) -> None:
    """Every file of the package that is no bytecode: weights, templates, styles, the marker for types."""
    source = ROOT / "src"
    wanted = {str(p.relative_to(source)) for p in (source / "spen").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert {"spen/py.typed", "spen/weights/dp-3/model.safetensors", "spen/weights/dp-3/config.json"} <= held


def test_it_carries_the_licences_of_code_and_models(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if "/licenses/" in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = archive.read(metadata).decode().split("\n\n")[0].splitlines()
    by_name = {name.partition("/licenses/")[2]: text for name, text in texts.items()}
    folder = "src/spen/weights/srl-ewt/"
    photo = "src/spen/weights/photo/LICENSE.txt"
    assert set(by_name) == {"LICENSE", f"{folder}LICENSE.txt", f"{folder}LICENSE-Apache-2.0.txt", photo}
    assert "License-Expression: MIT AND CC-BY-SA-4.0 AND Apache-2.0" in headers
    attribution = by_name[f"{folder}LICENSE.txt"]
    for source in ("UD_English-EWT", "A Gold Standard Dependency Corpus for English", "PropBank", "Paul Kingsbury"):
        assert source in attribution
    assert "https://creativecommons.org/licenses/by-sa/4.0/legalcode" in attribution


def test_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 10e6


def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """Into a folder of its own, which stands before this checkout; torch and the rest are those of the tests."""
    packages = tmp_path / "packages"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        packages,
        wheel,
    ]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}

    def run(*words: str | Path) -> str:
        return subprocess.run(
            list(words), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert run(sys.executable, "-c", "import spen; print(spen.__file__)").startswith(str(packages))
    spen = packages / "bin" / "spen"
    assert "dp-3" in run(spen, "list")
    Image.fromarray(np.full((20, 30), 2000, np.uint16)).save(tmp_path / "noisy.png")
    assert run(spen, "predict", "dp-3", "noisy.png", "-o", "clean.png").strip() == "clean.png"
