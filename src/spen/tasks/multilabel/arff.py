"""ARFF files with several labels, as MULAN and MEKA write them."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from spen.tasks.multilabel.sets import LabelSets, tensor

Attribute = tuple[str, list[str] | None]  # its name, and its values if nominal
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)\s+(.+)$""", re.IGNORECASE)


def read_arff(path: Path | str, labels: Sequence[str] | int | Path | None = None) -> LabelSets:
    """An ARFF file, dense or sparse; nominal attributes of two values {0,1} are numbers, others one column a value.

    ``labels`` names the attributes that are labels; or counts them (positive: the first ones, negative: the last
    ones, as MEKA's ``-C``); or is a MULAN XML file. Without it, MEKA's ``-C n`` in the relation's name is used, else
    an XML file of the same name beside this one.
    """
    path = Path(path)
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    relation, attributes = _arff_header(lines, path)
    rows = list(_arff_rows(lines, attributes, path))
    chosen = _arff_labels(labels, relation, [name for name, _ in attributes], path)
    columns: list[np.ndarray] = []
    targets = []
    for k, (name, values) in enumerate(attributes):
        column = np.array([row[k] for row in rows], dtype=np.float32)
        if name in chosen:
            targets.append((chosen.index(name), column))
        elif values is None or len(values) <= 2:
            columns.append(column)
        else:
            columns += [(column == v).astype(np.float32) for v in range(len(values))]
    y = [column for _, column in sorted(targets, key=lambda pair: pair[0])]
    x = np.stack(columns, 1) if columns else np.zeros((len(rows), 0), np.float32)
    return LabelSets(tensor(x), tensor(np.stack(y, 1)), tuple(chosen))


def _arff_header(lines: Iterable[str], path: Path) -> tuple[str, list[Attribute]]:
    relation = ""
    attributes: list[Attribute] = []
    for line in lines:
        line = line.strip()
        if line.lower().startswith("@relation"):
            relation = line
        elif match := _ATTRIBUTE.match(line):
            name, kind = _unquoted(match[1]), match[2].strip()
            if kind.startswith("{"):
                attributes.append((name, [_unquoted(v) for v in _fields(kind[1 : kind.rindex("}")])]))
            elif kind.lower() in ("numeric", "real", "integer"):
                attributes.append((name, None))
            else:
                raise ValueError(f"{path}: attribute {name!r} is of type {kind}; numbers and nominal values are read")
        elif line.lower().startswith("@data"):
            return relation, attributes
    raise ValueError(f"{path} is no ARFF file: it has no @data")


def _arff_rows(lines: Iterable[str], attributes: list[Attribute], path: Path) -> Iterable[list[float]]:
    for line in lines:
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        row = [0.0] * len(attributes)
        if line.startswith("{"):
            cells = [field.strip().split(None, 1) for field in _fields(line.strip("{} "))]
            pairs = [(int(cell[0]), cell[1]) for cell in cells if cell]
        else:
            pairs = list(enumerate(_fields(line)))
            if len(pairs) != len(attributes):
                raise ValueError(f"{path}: a row has {len(pairs)} values for {len(attributes)} attributes")
        for k, text in pairs:
            row[k] = _arff_value(_unquoted(text), attributes[k], path)
        yield row


def _arff_value(text: str, attribute: Attribute, path: Path) -> float:
    name, values = attribute
    if text == "?":
        raise ValueError(f"{path}: a value of {name!r} is missing; fill it in first")
    if values is None:
        return float(text)
    if text not in values:
        raise ValueError(f"{path}: {text!r} is no value of {name!r}")
    return float(text) if set(values) <= {"0", "1"} else float(values.index(text))


def _arff_labels(labels: Sequence[str] | int | Path | None, relation: str, names: list[str], path: Path) -> list[str]:
    meka = re.search(r"-C\s+(-?\d+)", relation)
    if labels is None and meka:
        labels = int(meka[1])
    elif labels is None and path.with_suffix(".xml").exists():
        labels = path.with_suffix(".xml")
    if labels is None:
        raise ValueError(
            f"{path} does not say which attributes are labels: pass labels=, a count, names or an XML file"
        )
    if isinstance(labels, Path):
        tags = [e for e in ElementTree.parse(labels).iter() if e.tag.split("}")[-1] == "label"]
        labels = [tag.attrib["name"] for tag in tags]
    if isinstance(labels, int):
        labels = names[:labels] if labels > 0 else names[labels:]
    unknown = [name for name in labels if name not in names]
    if unknown or not labels:
        raise ValueError(f"{path} has no attributes {unknown}" if unknown else f"{path}: the list of labels is empty")
    return list(labels)


def _fields(text: str) -> list[str]:
    quote = '"' if '"' in text else "'"
    return [field.strip() for field in next(csv.reader([text], quotechar=quote, skipinitialspace=True), [])]


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return re.sub(r"\\(.)", r"\1", text)
