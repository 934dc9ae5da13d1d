"""The files around the package: what make installs, and what the files for tools and hosting sites say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def made(*words: str) -> str:
    """The commands that make would run where there is no environment yet."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    # A make that runs these tests hands its options on by the environment.
    environment = {k: v for k, v in os.environ.items() if k not in ("BM3D", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")}
    command = ["make", "--dry-run", "VENV=no-such-environment", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_package_for_non_commercial_use_is_installed_only_if_asked_for(target: str) -> None:
    assert "baselines" not in made(target)
    assert "-e '.[baselines]'" in made(target, "BM3D=1")
