"""Docstrings hold formulas as plain text: y* is the truth and does not begin italics, [·] is a bracket and no link."""

from __future__ import annotations

import re
from typing import Any

import griffe

CODE = re.compile(r"(``.+?``|`[^`]+`|https?://\S+)", re.DOTALL)


def plain(text: str) -> str:
    """Markdown's own signs escaped, except in code and in indented blocks, which hold code or formulas as they are."""
    lines = text.splitlines()
    return "\n".join(line if line.startswith("    ") else _escape(line) for line in lines)


def _escape(line: str) -> str:
    parts = CODE.split(line)
    return "".join(part if i % 2 else re.sub(r"([*_\[\]<])", r"\\\1", part) for i, part in enumerate(parts))


class Formulas(griffe.Extension):
    """Escape every docstring as it is found."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)
