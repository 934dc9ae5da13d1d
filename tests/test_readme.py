"""The README's example runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text("import torch; torch.manual_seed(0); torch.set_num_threads(1)\n" + code, encoding="utf-8")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    before, after = map(float, re.findall(r"\d\.\d\d", result.stdout))
    assert before < 0.8
    assert after > before + 0.1


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert link.startswith("http") or (README.parent / link).exists(), link
