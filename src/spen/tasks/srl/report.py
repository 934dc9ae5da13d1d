"""OUT/DATA/report.html: results.json and the propositions of the runs as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import Markup

from spen.tasks.charts import draw_lines
from spen.tasks.report import Section, write_page
from spen.tasks.srl.drawing import draw_proposition
from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.recipes import ABLATIONS, find_recipe
from spen.tasks.srl.sentences import Props, Sentence
from spen.tasks.srl.table import COLUMNS, cell_text, system_name


def write_report(summary: dict[str, Any], sentences: Sequence[Sentence], folder: Path) -> None:
    """The page for one summary, into the folder with its runs; `sentences` are the dev sentences."""
    about = summary["about"]
    main = [row for row in summary["rows"] if row["row"] not in ABLATIONS]
    ablation = [row for row in summary["rows"] if row["row"] in ABLATIONS or row["row"] == "spen"]
    genre = f"; out of domain: trained without {about['genre']}, tested on all of it" if about.get("genre") else ""
    note = (
        f"Data: {about['data']}{genre}. Official CoNLL-2005 F1, mean ± standard deviation over seeds. In grey: the "
        "paper's figure on CoNLL-2005 (WSJ dev, WSJ test, Brown). That is another corpus, so compare the order of the "
        "systems, not the figures."
    )
    sections = [
        Section(note=note, head=_HEAD, rows=_rows(main)),
        _pairs(summary.get("pairs", [])),
        Section(
            "Constraint violations before rounding, and time",
            "Overlaps and repeated core roles of the plain argmax on dev, mean over seeds.",
            ("system", "violations", "training, s", "prediction, sentences/s", "device"),
            _times(summary["rows"], summary["runs"]),
        ),
        Section("The descent", html=_descents(summary["runs"])),
        Section(
            "Examples",
            "Dev sentences on which the systems differ; green arcs are gold ones.",
            html=_examples(sentences, folder),
        ),
    ]
    if len(ablation) > 1:
        rows = _rows([row for row in ablation if row["decoder"] == "ad3"])
        sections.append(Section("Ablation", head=_HEAD, rows=rows))
    write_page(folder / "report.html", "Semantic role labelling: Table 2", sections)


def _pairs(pairs: Sequence[dict[str, Any]]) -> Section:
    if not pairs:
        return Section("Differences", "No two rows have predictions of the same seeds.")
    note = f"F1 with AD³ on {pairs[0]['split']}, paired over {pairs[0]['seeds']} seeds; intervals by the bootstrap."
    rows = [
        (
            f"{d['a']} − {d['b']}",
            f"{d['difference']:+.2f}",
            f"{d['low']:+.2f} to {d['high']:+.2f}",
            f"{d['p']:.4f}",
        )
        for d in pairs
    ]
    return Section("Differences", note, ("systems", "difference", "95 % interval", "p"), rows)


_HEAD = ("system", *(column.replace("_", " ") for column in COLUMNS))


def _rows(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            Markup('<span title="{}">{}</span>').format(find_recipe(row["row"]).about, system_name(row)),
            *(cell_text(row[column]) + _paper(row[column]["paper"]) for column in COLUMNS),
        ]
        for row in rows
    ]


def _paper(figure: float | None) -> Markup:
    return Markup("") if figure is None else Markup(' <span class="paper">{:.1f}</span>').format(figure)


def _times(rows: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    devices = {result["row"]: result["device"] for result in results}
    cells: list[tuple[str, ...]] = []
    for row in rows:
        if row["decoder"] == "ad3":
            numbers = row["dev"]["violations"], row["train_seconds"], row["sentences_per_second"]
            cells.append((row["row"], *map(_number, numbers), devices[row["row"]]))
    return cells


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
