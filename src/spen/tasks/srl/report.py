"""results.json and the propositions of the runs → one self-contained page."""

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
from spen.tasks.srl.sentences import Proposition, Props, Sentence
from spen.tasks.srl.table import COLUMNS, LABELS

__all__ = ["write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; color: #1f2328; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .3em .9em; text-align: right; }
th { border-bottom: 2px solid #d0d7de; } td:first-child, th:first-child { text-align: left; }
tr:nth-child(even) { background: #f6f8fa; } .paper { color: #57606a; } .note { color: #57606a; }
.wide { overflow-x: auto; }
h3 { margin-bottom: 0; }
"""


def write_report(summary: dict[str, Any], sentences: Sequence[Sentence], runs: Path, path: Path) -> None:
    """The page for one summary; `sentences` are the dev sentences, `runs` the folder of whole-corpus runs."""
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
        "<h2>Constraint violations before rounding</h2>",
        '<p class="note">Overlaps and repeated core roles of the plain argmax on dev, mean over seeds.</p>',
        _violations(main),
        "<h2>The descent</h2>",
        _descents(summary["runs"]),
        "<h2>Examples</h2>",
        '<p class="note">Dev sentences on which the systems differ; green arcs are gold ones.</p>',
        _examples(sentences, runs),
    ]
    if len(ablation) > 1:
        parts += ["<h2>Ablation</h2>", _table([row for row in ablation if row["decoder"] == "ad3"])]
    parts += ["<h2>Time</h2>", _times(summary["runs"])]
    body = "\n".join(parts)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Table 2</title><style>{_STYLE}</style>'
    path.write_text(f"{head}{body}</html>\n", encoding="utf-8")


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
    names = [
        f'<span title="{escape(find_recipe(row["row"]).about)}">{escape(row["row"])} + {LABELS[row["decoder"]]}</span>'
        for row in rows
    ]
    cells = ([name, *(_cell(row[column]) for column in COLUMNS)] for name, row in zip(names, rows, strict=True))
    return _html(("system", *(column.replace("_", " ") for column in COLUMNS)), cells)


def _cell(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        text = "–"
    else:
        text = f"{cell['mean']:.2f}" + (f" ± {cell['spread']:.2f}" if cell["spread"] is not None else "")
    paper = cell["paper"]
    return text + (f' <span class="paper">{paper:.1f}</span>' if paper is not None else "")


def _violations(rows: Sequence[dict[str, Any]]) -> str:
    counted = [row for row in rows if row["decoder"] == "ad3" and row["dev"]["violations"] is not None]
    cells = ((escape(row["row"]), f"{row['dev']['violations']:.1f}") for row in counted)
    return _html(("system", "violations"), cells)


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


def _examples(sentences: Sequence[Sentence], runs: Path, *, count: int = 8) -> str:
    """Propositions where Local and SPEN differ, gold above them."""
    found = {name: _props(runs, name) for name in ("local", "spen", "spen-best")}
    present = {name: props for name, props in found.items() if props is not None and len(props) == len(sentences)}
    if len(present) < 2 or "local" not in present:
        return "<p>There are no two systems to compare yet.</p>"
    parts: list[str] = []
    for i, sentence in enumerate(sentences):
        if len(parts) == count:
            break
        for k, gold in enumerate(sentence.propositions):
            answers = {name: props[i].propositions[k] for name, props in present.items()}
            if len(sentence) <= 22 and len({frozenset(a.arguments) for a in answers.values()}) > 1:
                parts.append(_example(sentence, gold, answers))
                break
    return "".join(parts)


def _example(sentence: Sentence, gold: Proposition, answers: dict[str, Proposition]) -> str:
    drawn = [f"<h3>gold</h3><div class='wide'>{draw_proposition(sentence, gold)}</div>"]
    drawn += [
        f"<h3>{name}</h3><div class='wide'>{draw_proposition(sentence, answer, gold)}</div>"
        for name, answer in answers.items()
    ]
    return f"<section>{''.join(drawn)}<hr></section>"


def _props(runs: Path, name: str) -> list[Props] | None:
    paths = sorted(runs.glob(f"{name}-[0-9]*/dev.props.gz"))
    return read_props(paths[0]) if paths else None


def _times(results: Sequence[dict[str, Any]]) -> str:
    lines = []
    for name in dict.fromkeys(r["row"] for r in results):
        mine = [r for r in results if r["row"] == name and r["corpus"] == "whole"]
        if not mine:
            continue
        speeds = [r["sentences_per_second"] for r in mine if "sentences_per_second" in r]
        speed = f"{mean(speeds):.0f}" if speeds else "–"
        seconds = mean(r["train_seconds"] for r in mine)
        lines.append((escape(name), f"{seconds:.0f}", speed, escape(mine[0]["device"])))
    return _html(("system", "training, s", "prediction, sentences/s", "device"), lines)
