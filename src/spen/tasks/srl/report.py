"""OUT/DATA/report.html: results.json and the propositions of the runs as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from spen.tasks.charts import draw_lines
from spen.tasks.srl.drawing import draw_proposition
from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.recipes import ABLATIONS, find_recipe
from spen.tasks.srl.sentences import Props, Sentence
from spen.tasks.srl.table import COLUMNS, cell_text, system_name

__all__ = ["write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; color: #1f2328; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .3em .9em; text-align: right; }
th { border-bottom: 2px solid #d0d7de; } td:first-child, th:first-child { text-align: left; }
tr:nth-child(even) { background: #f6f8fa; } .paper { color: #57606a; } .note { color: #57606a; }
.wide { overflow-x: auto; }
h3 { margin-bottom: 0; }
"""


def write_report(summary: dict[str, Any], sentences: Sequence[Sentence], folder: Path) -> None:
    """The page for one summary, into the folder with its runs; `sentences` are the dev sentences."""
    about = summary["about"]
    main = [row for row in summary["rows"] if row["row"] not in ABLATIONS]
    ablation = [row for row in summary["rows"] if row["row"] in ABLATIONS or row["row"] == "spen"]
    genre = f"; out of domain: trained without {about['genre']}, tested on all of it" if about.get("genre") else ""
    parts = [
        "<h1>Semantic role labelling: Table 2</h1>",
        f'<p class="note">Data: {escape(str(about["data"]))}{escape(genre)}. Official CoNLL-2005 F1, mean ± standard '
        "deviation over seeds; in grey the paper's figure on CoNLL-2005 (WSJ dev, WSJ test, Brown), whose corpus is "
        "another one: the order of the systems is what compares.</p>",
        _table(main),
        "<h2>Differences</h2>",
        _pairs(summary.get("pairs", [])),
        "<h2>Constraint violations before rounding, and time</h2>",
        '<p class="note">Overlaps and repeated core roles of the plain argmax on dev, mean over seeds.</p>',
        _times(summary["rows"], summary["runs"]),
        "<h2>The descent</h2>",
        _descents(summary["runs"]),
        "<h2>Examples</h2>",
        '<p class="note">Dev sentences on which the systems differ; green arcs are gold ones.</p>',
        _examples(sentences, folder),
    ]
    if len(ablation) > 1:
        parts += ["<h2>Ablation</h2>", _table([row for row in ablation if row["decoder"] == "ad3"])]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Table 2</title><style>{_STYLE}</style>'
    page = "\n".join(parts)
    (folder / "report.html").write_text(f"{head}{page}</html>\n", encoding="utf-8")


def _pairs(pairs: Sequence[dict[str, Any]]) -> str:
    if not pairs:
        return '<p class="note">No two rows have predictions of the same seeds.</p>'
    about = f"F1 with AD³ on {pairs[0]['split']}, paired over {pairs[0]['seeds']} seeds; intervals by the bootstrap."
    rows = [
        (
            escape(f"{d['a']} − {d['b']}"),
            f"{d['difference']:+.2f}",
            f"{d['low']:+.2f} to {d['high']:+.2f}",
            f"{d['p']:.4f}",
        )
        for d in pairs
    ]
    return f'<p class="note">{about}</p>' + _html(("systems", "difference", "95 % interval", "p"), rows)


def _html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = (
        [
            f'<span title="{escape(find_recipe(row["row"]).about)}">{escape(system_name(row))}</span>',
            *(cell_text(row[column]) + _paper(row[column]["paper"]) for column in COLUMNS),
        ]
        for row in rows
    )
    return _html(("system", *(column.replace("_", " ") for column in COLUMNS)), cells)


def _paper(figure: float | None) -> str:
    return "" if figure is None else f' <span class="paper">{figure:.1f}</span>'


def _times(rows: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> str:
    devices = {result["row"]: result["device"] for result in results}
    cells = []
    for row in rows:
        if row["decoder"] == "ad3":
            numbers = row["dev"]["violations"], row["train_seconds"], row["sentences_per_second"]
            cells.append((escape(row["row"]), *map(_number, numbers), escape(devices[row["row"]])))
    return _html(("system", "violations", "training, s", "prediction, sentences/s", "device"), cells)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _descents(results: Sequence[dict[str, Any]]) -> str:
    """Energy, F1 and violations by iteration: the mean over the seeds of each system that descends."""
    courses: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if "descent" in result and result["corpus"] == "whole" and result["row"] not in ABLATIONS:
            courses.setdefault(result["row"], []).append(result["descent"])
    charts = []
    for key, title in (("energy", "energy"), ("f1", "F1 with AD³"), ("violations", "violations")):
        lines = {
            name: [mean(step) for step in zip(*(c[key] for c in found), strict=True)] for name, found in courses.items()
        }
        if key == "energy":  # systems have energies of their own scale: show what each descent gains
            lines = {name: [v - line[0] for v in line] for name, line in lines.items()}
            title = "energy, less that of the start"
        charts.append(draw_lines(title, lines))
    return "".join(charts)


def _examples(sentences: Sequence[Sentence], folder: Path, *, count: int = 8) -> str:
    """Short sentences with a proposition on which Local and SPEN differ, gold above them."""
    found = {name: _props(folder, name) for name in ("local", "spen", "spen-best")}
    present = {name: props for name, props in found.items() if len(props) == len(sentences)}
    if len(present) < 2 or "local" not in present:
        return "<p>There are no two systems to compare yet.</p>"
    parts: list[str] = []
    for i, sentence in enumerate(sentences):
        if len(parts) == count or len(sentence) > 22:
            continue
        for k, gold in enumerate(sentence.propositions):
            answers = {name: props[i].propositions[k] for name, props in present.items()}
            if len({frozenset(a.arguments) for a in answers.values()}) > 1:
                drawn = {"gold": draw_proposition(sentence, gold)}
                drawn |= {name: draw_proposition(sentence, answer, gold) for name, answer in answers.items()}
                blocks = [f"<h3>{name}</h3><div class='wide'>{svg}</div>" for name, svg in drawn.items()]
                parts.append(f"<section>{''.join(blocks)}<hr></section>")
                break
    return "".join(parts)


def _props(folder: Path, name: str) -> list[Props]:
    paths = sorted(folder.glob(f"{name}/seed-*/dev.props.gz"))
    return read_props(paths[0]) if paths else []
