"""Who imports whom: the core imports nothing above it, and no two of its packages import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import spen

SOURCE = Path(spen.__file__).parent
CORE = {
    *(
        "protocols",
        "model",
        "minimizer",
        "bundle_entropy",
        "tensors",
        "parameters",
        "arguments",
        "mismatch",
        "search",
        "curvature",
    ),
    *("builders", "storage", "pretrained", "hub", "energies", "domains", "rules", "descent", "gradients"),
    *("objectives", "rounding", "testing", "derivatives"),
}
ABOVE = {"training", "models", "sklearn", "tasks", "cli", "viewer", "export"}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from executed(other)
            continue
        yield child
        yield from executed(child)


@cache
def imported(source: str) -> set[str]:
    """The modules that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in executed(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else str(node.module) for full in whole.values()}
    return found


def package_of(module: str) -> str:
    """The first name below spen, nothing for spen itself; each task is a package of its own beside their registry."""
    first, *rest = module.split(".")[1:] or [""]
    if first == "tasks" and rest and f"spen.tasks.{rest[0]}.task" in MODULES:
        return f"tasks.{rest[0]}"
    return first


@cache
def packages() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        names = imported(path.read_text(encoding="utf-8"))
        others = {package_of(name) for name in names if name.split(".")[0] == "spen"}
        found.setdefault(package_of(module), set()).update(others - {package_of(module), ""})
    return found


def test_imports_are_found_wherever_they_run() -> None:
    source = """
from typing import TYPE_CHECKING
from spen import tensors, __version__
if TYPE_CHECKING:
    from spen.model import SPEN
else:
    import spen.rules
def late():
    from spen.energies.compose import Sum
"""
    assert imported(source) == {"typing", "spen", "spen.tensors", "spen.rules", "spen.energies.compose"}


def test_every_package_has_its_place() -> None:
    """A new package of spen belongs to the core or above it: put it into one of the two sets."""
    assert {name for name in packages() if not name.startswith("tasks.")} - {"", "__main__"} <= CORE | ABOVE
    assert set(packages()) >= CORE


def test_the_core_imports_nothing_above_it() -> None:
    above = {"pytorch_lightning", "typer", "rich", "gradio", "onnx"}
    for module, path in MODULES.items():
        package = package_of(module)
        if package in CORE:
            assert packages()[package] <= CORE, package
            found = {name.split(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
            assert not found & above, module


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """Packages each of which imports the next, and the last the first; nothing if there are none."""
    left = dict(graph)
    while left:
        done = [name for name, others in left.items() if not others & left.keys()]
        if not done:
            break
        for name in done:
            del left[name]
    if not left:
        return []
    walk = [min(left)]
    while walk[-1] not in walk[:-1]:
        walk.append(min(left[walk[-1]] & left.keys()))
    return walk[walk.index(walk[-1]) :]


def test_cycles_are_found() -> None:
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c", "b"]


def test_no_packages_import_each_other() -> None:
    assert cycle_of(packages()) == []


def test_no_modules_of_the_core_import_each_other() -> None:
    """Within a package too; the compiler of ``spen.gradients`` counts as one module among its strategies."""

    def node(module: str) -> str:
        compiler = "spen.gradients.compiled"
        return compiler if module.startswith(f"{compiler}.") else module

    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if package_of(module) in CORE:
            others = {node(n) for n in imported(path.read_text(encoding="utf-8")) if n.startswith("spen.")}
            graph.setdefault(node(module), set()).update(others - {node(module)})
    assert cycle_of(graph) == []
