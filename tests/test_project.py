"""The files around the package: what make installs, and what the files for tools and hosting sites say."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import spen
from tests.conftest import pytest_collection_modifyitems, slow

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


def test_quick_leaves_out_slow_tests_alone() -> None:
    assert 'pytest -n 2 --dist worksteal -m "not slow"' in made("quick")
    assert "slow" not in made("test")
    listed = slow()
    assert list(listed) == sorted(set(listed))
    for line in listed:  # a test that is renamed is renamed there, too
        file, _, function = line.partition("::")
        assert (ROOT / file).is_file(), line
        assert function == "" or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), line


def test_tests_in_the_list_are_marked() -> None:
    marks: dict[str, list[str]] = {f"{slow()[0]}::test_one": [], "tests/test_other.py::test_two": []}
    items = [
        SimpleNamespace(nodeid=name, add_marker=lambda mark, kept=kept: kept.append(mark.name))
        for name, kept in marks.items()
    ]
    pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert list(marks.values()) == [["slow"], []]


def parsed(name: str) -> Any:
    """A YAML file of the project, through the parser that Lightning needs too."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def pinned(package: str) -> str:
    (version,) = re.findall(rf"(?m)^{package}==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return version


def test_pre_commit_runs_the_pinned_ruff_and_mypy() -> None:
    ruff, local = parsed(".pre-commit-config.yaml")["repos"]
    assert ruff["repo"].endswith("/ruff-pre-commit")
    assert ruff["rev"] == f"v{pinned('ruff')}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    linted = re.findall(r"ruff check (.+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    for hook in ruff["hooks"]:
        assert [f"^({'|'.join(folders.split())})/" for folders in linted] == [hook["files"]]
    assert [hook["entry"] for hook in local["hooks"]] == [".venv/bin/mypy"]


def test_the_workflow_runs_targets_of_make_on_every_supported_python() -> None:
    jobs = parsed(".github/workflows/ci.yml")["jobs"]
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert runs == {"lint": ["make lint"], "tests": ["make test"], "docs": ["make docs"], "wheel": ["make wheel"]}
    assert jobs["tests"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"


def test_the_citation_names_the_software_and_the_paper() -> None:
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == spen.__version__
    assert citation["authors"] == [{"name": "The spen developers"}]
    (paper,) = citation["references"]
    assert paper["title"] == "End-to-End Learning for Structured Prediction Energy Networks"
    assert [author["family-names"] for author in paper["authors"]] == ["Belanger", "Yang", "McCallum"]
    assert (paper["year"], paper["volume"]) == (2017, 70)


def test_a_report_asks_for_what_is_needed() -> None:
    form = parsed(".github/ISSUE_TEMPLATE/bug.yml")
    assert [part["id"] for part in form["body"]] == ["what", "code", "versions"]
    assert all(part["validations"]["required"] for part in form["body"])


def test_what_the_guide_names_exists() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs)/[^`]+)`", guide)
    assert len(named) > 20
    for path in named:
        assert "NAME" in path or (ROOT / path).exists(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)^make (\w+)", guide):
        assert re.search(rf"(?m)^{target}:", makefile), target


def test_no_pickle_is_loaded() -> None:
    """What SECURITY.md promises: no pickle module, no torch.load, and numpy told not to unpickle."""
    for path in (ROOT / "src" / "spen").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not {"pickle", "cloudpickle", "joblib", "shelve"} & {*names, module}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "torch.load", path
                if called in ("np.load", "numpy.load"):
                    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                    assert options["allow_pickle"] == "False", path
