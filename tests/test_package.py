"""Importing spen is cheap, and the core runs on torch alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spen
from tests.test_import_graph import CORE, MODULES, package_of

LAZY = list(spen._MODULES)


def test_modules_are_imported_at_their_first_use_and_the_core_needs_torch_alone() -> None:
    """In a fresh process: `import spen` imports no torch; the core and a denoiser import nothing slow beyond it."""
    core = [module for module in MODULES if package_of(module) in CORE]
    others = ("scipy", "sklearn", "skimage", "pytorch_lightning", "matplotlib", "huggingface_hub")
    code = f"""
import importlib, sys
import spen
print(*(m for m in sys.modules if m == "torch" or m.startswith("spen.")))
for module in {core}:
    importlib.import_module(module)
print([m for m in {others} if m in sys.modules])
from spen.models import open_model
open_model("dp-3")
print([m for m in ("torchmetrics", *{others}) if m in sys.modules])
print(*(getattr(spen, name).__name__ for name in {LAZY}))
print(spen.objectives.EndToEnd.__name__, spen.domains.Simplex().__class__.__name__, spen.__version__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_once, beyond_torch, to_predict, names, used = result.stdout.splitlines()
    assert not set(at_once.split()) & {"torch", *(f"spen.{name}" for name in LAZY)}
    assert beyond_torch == to_predict == "[]"
    assert names.split() == [f"spen.{name}" for name in LAZY]
    assert used == f"EndToEnd Simplex {spen.__version__}"
    assert set(LAZY) <= set(dir(spen))


def test_public_names_resolve() -> None:
    for name in spen.__all__:
        assert getattr(spen, name) is not None
    assert {"Minimizer", "derivatives"} <= set(dir(spen))
    with pytest.raises(AttributeError, match="module 'spen' has no attribute 'Foo'"):
        _ = spen.Foo
