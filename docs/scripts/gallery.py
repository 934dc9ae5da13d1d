"""Every example run, its picture and what it prints put into the gallery. python docs/scripts/gallery.py"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for example in sorted((ROOT / "examples").glob("*.py")):
        command = [sys.executable, "-W", "ignore", str(example)]
        folder = ROOT / "docs" / "figures" / "gallery"
        environment = {**os.environ, "MPLBACKEND": "Agg"}
        out = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
        print(out, end="")
        block = f"$ python examples/{example.name}\n"
        page = re.sub(rf"({re.escape(block)}).*?(?=```)", lambda m, out=out: m[1] + out, page, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
