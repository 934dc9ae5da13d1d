"""The documentation: it builds without a warning, needs no network, names what exists and leaves nothing out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAP = (DOCS / "paper-map.md").read_text(encoding="utf-8")
PUBLIC = [
    "energies",
    "domains",
    "rules",
    "gradients",
    "derivatives",
    "objectives",
    "rounding",
    "training",
    "sklearn",
    "export",
    "testing",
]


def resolve(dotted: str) -> Any:
    """The object of a dotted name: the longest importable module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


# ── the paper map ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("symbol", sorted(set(re.findall(r"`(spen(?:\.\w+)+)`", MAP))))
def test_every_symbol_of_the_paper_map_exists(symbol: str) -> None:
    assert resolve(symbol) is not None


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", MAP))))
def test_every_test_of_the_paper_map_exists(test: str) -> None:
    file, _, function = test.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {function}\(", text, re.MULTILINE), "the map names a test function"


def test_every_equation_and_section_is_in_the_paper_map() -> None:
    equations = [int(n) for n in re.findall(r"^\| Eq\. (\d+) \|", MAP, re.MULTILINE)]
    assert equations == list(range(1, 19)), "each once, in order"
    sections = set(re.findall(r"^\| (?:Sec|App)\. ([\w.]+) \|", MAP, re.MULTILINE))
    paper = {"1", "2", "2.1", "2.2", "2.3", "3", "4", "4.1", "4.2", "4.3", "5", "6.1.1", "6.1.2", "6.1.3"}
    assert sections == paper | {"6.2.1", "6.2.2", "6.2.3", "7", "A.1", "A.2.1", "A.2.2"}
    for row in re.findall(r"^\| (?:Eq|Sec|App).*", MAP, re.MULTILINE):
        assert row.count("|") in (5, 6), row  # the experiments have a column of departures
        symbol, test = row.split("|")[3:5]
        assert "`spen." in symbol, row
        assert "`tests/" in test or "`python docs/scripts/" in test, row


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scripts_named_in_the_pages_exist() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for script in re.findall(r"python ((?:docs/scripts|examples)/\w+\.py)", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name} names {script}"


def test_modules_and_names_of_the_pages_exist() -> None:
    """`python -m spen.x`, `spen.x.y` and `from spen.x import y`, wherever a page names one."""
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        for module in re.findall(r"python\s+-m\s+((?:spen|benchmarks|tests)[\w.]*)", text):
            found = importlib.util.find_spec(module)
            assert found is not None, f"{page.name}: python -m {module}"
            file = Path(str(found.origin))
            program = file.with_name("__main__.py") if file.name == "__init__.py" else file
            assert "__main__" in program.read_text(encoding="utf-8") or program.stem == "__main__", module
        for name in re.findall(r"`(spen(?:\.\w+)+)`", text):
            assert resolve(name) is not None, page
        for module, names in re.findall(r"^from (spen(?:\.\w+)*) import ([\w, ]+)$", text, re.MULTILINE):
            for name in names.split(", "):
                assert resolve(f"{module}.{name}") is not None, page


def test_files_named_in_the_pages_exist() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        text = page.read_text(encoding="utf-8")
        for file in re.findall(r"(?<![\w/.])((?:src/spen|tests|docs|examples|benchmarks)/[\w./-]*\w)", text):
            if "NAME" not in file and not file.startswith("tests/helpers"):
                assert (ROOT / file).exists(), f"{page.name} names {file}"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_api_reference(module: str) -> None:
    page = (DOCS / "api" / f"{module}.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(
        f"spen.{module}.{name}" for name in importlib.import_module(f"spen.{module}").__all__
    )


def test_the_names_of_the_package_are_in_the_api_reference() -> None:
    import spen

    page = (DOCS / "api" / "spen.md").read_text(encoding="utf-8")
    named = {resolve(name) for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}
    assert {getattr(spen, name) for name in spen.__all__ if name != "__version__"} <= named


def test_pages_speak_of_what_a_reader_has() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp)/", text), page
        assert "localhost" not in text, page


def test_blocks_of_code_parse() -> None:
    """Every ```python block is Python; those of the tutorial and the README are run as well."""
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if "--8<--" not in code:  # an example, put in when the page is built
                compile(code, str(page), "exec")


def _commands(page: Path) -> Iterator[str]:
    """Every `spen …` of a page: lines of fenced blocks, continued ones as one, and inline code."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"```(?:console|bash)?\n(.*?)```", text, re.DOTALL):
        yield from re.findall(r"^(?:\$ )?(spen [^#\n]*)", block, re.MULTILINE)
    for code in re.findall(r"`(spen\s[^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if "\n\n" not in code:
            yield " ".join(code.split())


def _refused(command: Any, path: list[str], words: list[str]) -> list[str]:
    """What the parser has against a call; a page may speak of a command without all that it needs."""
    try:
        command.make_context(" ".join(path), words)
    except Exception as error:
        return [] if type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError") else [str(error)]
    return []


def test_commands_in_the_pages_are_spelled_as_the_program_has_them() -> None:
    """Every command, argument and option that a page shows is parsed; what they do is tested elsewhere."""
    from spen.cli.app import app

    root = typer.main.get_command(app)
    count, problems = 0, list[str]()
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for line in _commands(page):
            words = shlex.split(line)[1:]
            if "…" in line or "..." in line or "COMMAND" in line or words[0].startswith("--"):
                continue
            command: Any = root
            path = ["spen"]
            while hasattr(command, "commands") and words:
                assert words[0] in command.commands, f"{page.name}: {line}"
                command = command.commands[words[0]]
                path.append(words.pop(0))
            problems += [f"{page.name}: {line}: {problem}" for problem in _refused(command, path, words)]
            count += 1
    assert count > 40
    assert problems == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the documentation needs the extra `docs`")
    out = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout + result.stderr == ""
    return out


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(DOCS).with_suffix("")
        assert (site / place / "index.html").is_file() or place.name == "index", page
        if place.name != "index":
            assert f'href="{place}/"' in home, f"{page.name} is in no menu"


def test_nothing_is_fetched_when_a_page_is_read(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(https?:[^\s\"'>]+)", text)
        loaded += re.findall(r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect)[^>]+href=[\"']?(https?:[^\s\"'>]+)", text)
        assert loaded == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()[^;)]*https?:", style.read_text(encoding="utf-8")), style


def test_the_command_line_reference_has_every_command(site: Path) -> None:
    text = (site / "cli" / "index.html").read_text(encoding="utf-8")
    for command in ("list", "train", "evaluate", "predict", "reproduce", "score", "compare", "data fetch"):
        assert f'id="spen-{command.replace(" ", "-")}"' in text, command
    assert "--device" in text
    assert "--accelerator" not in text
