"""The code of docs/tutorial.md, run as one program; what it prints is compared with the page.

    python docs/scripts/tutorial.py              # a few minutes on one core; differences end in exit status 1
    python docs/scripts/tutorial.py --write      # put the pictures and what was printed into the page

A ```python block is followed, where it prints, by a ```text block with what it printed, or by a ```console block for
what differs from run to run (times), which is written but not compared.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "tutorial.md"
BLOCK = re.compile(r"```(python|text|console)\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return [(found[1], found[2]) for found in BLOCK.finditer(page)]


def run(code: list[str], folder: Path) -> list[str]:
    """What each block prints; pictures go to the folder."""
    import matplotlib

    matplotlib.use("Agg")
    before = Path.cwd()
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    try:
        for number, block in enumerate(code):
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), names)
            printed.append(out.getvalue())
    finally:
        os.chdir(before)
    return printed


def main(write: bool) -> int:
    page = PAGE.read_text(encoding="utf-8")
    found = blocks(page)
    printed = iter(run([text for kind, text in found if kind == "python"], PAGE.parent / "figures"))
    expected: list[tuple[str, str]] = []  # what each block of output holds, and what it should
    for (kind, _), (_, after) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind == "python":
            now = next(printed)
            sys.stdout.write(now)
            if now:
                expected.append((after, now))
    outputs = iter(expected)
    if write:
        page = BLOCK.sub(lambda m: m[0] if m[1] == "python" else f"```{m[1]}\n{next(outputs)[1]}```", page)
        PAGE.write_text(page, encoding="utf-8")
        return 0
    kinds = [kind for kind, _ in found if kind != "python"]
    return int(any(old != new for kind, (old, new) in zip(kinds, expected, strict=True) if kind == "text"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    sys.exit(main(parser.parse_args().write))
