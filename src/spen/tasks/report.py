"""report.html of both tables: sections with a note, a table and pictures, as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from spen.storage import write_whole


@dataclass(frozen=True)
class Section:
    """``head`` and ``rows`` are the cells of a table. Cells are escaped unless they are ``Markup``, ``html`` is not."""

    title: str = ""
    note: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    html: str = ""


def write_page(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page; ``title`` is its heading."""
    folder = Path(__file__).parent
    template = Environment(autoescape=True, loader=FileSystemLoader(folder), trim_blocks=True, lstrip_blocks=True)
    write_whole(path, template.get_template("report.html").render(title=title, sections=sections))
    return path
