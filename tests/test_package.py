"""The house: the core imports nothing above it, and importing spen is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spen

SOURCE = Path(spen.__file__).parent
CORE = ["energies", "domains", "descent", "gradients", "objectives", "rounding", "testing"]
CORE_FILES = ["protocols.py", "model.py", "minimizer.py", "bundle_entropy.py", "builders.py", "pretrained.py"]
CORE_FILES += ["hub.py", "storage.py"]
CORE_FILES += ["rules.py", "derivatives.py", "tensors.py", "parameters.py", "_repr.py"]
ABOVE = ("spen.tasks", "spen.cli", "spen.viewer", "spen.training", "spen.export")
ABOVE += ("pytorch_lightning", "typer", "rich", "gradio", "onnx")


def _core_modules() -> list[Path]:
    return [*(p for d in CORE for p in (SOURCE / d).rglob("*.py")), *(SOURCE / f for f in CORE_FILES)]


@pytest.mark.parametrize("path", _core_modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_core_imports_nothing_above_it(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module or ""]
        for name in names:
            assert not name.startswith(ABOVE), f"{path.name} imports {name}"


def test_the_core_runs_on_torch_alone() -> None:
    """Importing every core module brings in no package beyond torch's own needs."""
    modules = [
        "spen." + ".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for p in _core_modules()
    ]
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({m!r})\n" for m in modules)
    others = ("scipy", "sklearn", "skimage", "pytorch_lightning", "matplotlib", "huggingface_hub")
    code += f"print([m for m in {others} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_spen_does_not_import_torch() -> None:
    code = "import spen, sys; print('torch' in sys.modules, spen.__version__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", spen.__version__]


MODULES = [
    "derivatives",
    "domains",
    "energies",
    "gradients",
    "objectives",
    "rounding",
    "rules",
    "tasks",
    "testing",
    "training",
]


def test_modules_are_reached_through_the_package_and_imported_at_their_first_use() -> None:
    """In a fresh process: `import spen` by itself imports none of them."""
    code = "import spen, sys; print(*(m for m in sys.modules if m.startswith('spen.')))\n"
    code += f"print(*(getattr(spen, name).__name__ for name in {MODULES}))\n"
    code += "print(spen.objectives.EndToEnd.__name__, spen.domains.Simplex().__class__.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, names, used = result.stdout.split("\n")[:3]
    assert not set(before.split()) & {f"spen.{name}" for name in MODULES}
    assert names.split() == [f"spen.{name}" for name in MODULES]
    assert used == "EndToEnd Simplex"
    assert set(MODULES) <= set(dir(spen))


def test_public_names_resolve() -> None:
    for name in spen.__all__:
        assert getattr(spen, name) is not None
    assert {"Minimizer", "derivatives"} <= set(dir(spen))
    with pytest.raises(AttributeError, match="module 'spen' has no attribute 'Foo'"):
        _ = spen.Foo
