"""ARFF files with several labels, as MULAN and MEKA write them."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from spen.tasks.multilabel.label_sets import LabelSets, tensor

Attribute = tuple[str, list[str] | None]  # its name, and its values if nominal
_ATTRIBUTE = re.compile(
    r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)(?:\s+([^\s{].*)|\s*\{(.*)\}.*)$""", re.IGNORECASE
)


@dataclass(frozen=True)
class _Header:
    """What a file says before its rows, and the lines that hold these."""

    attributes: list[Attribute]
    labels: list[str]
    lines: Iterator[str]


def read_arff(
    path: Path | str, labels: Sequence[str] | int | Path | None = None, *, train: Path | str | None = None
) -> LabelSets:
    """An ARFF file, dense or sparse; nominal attributes of two values {0,1} are numbers, others one column a value.

    ``labels`` names the attributes that are labels; or counts them (positive: the first ones, negative: the last
    ones, as MEKA's ``-C``); or is a MULAN XML file. Without it, MEKA's ``-C n`` in the relation's name is used, else
    an XML file of the same name beside this one. ``train`` is the training part of a test part, which must have the
    same attributes and labels in the same order.
    """
    path = Path(path)
    header = _header(path, labels)
    if train is not None:
        seen = _header(Path(train), labels)
        _refuse_other(path, "attributes", *([_kind(a) for a in h.attributes] for h in (header, seen)))
        _refuse_other(path, "labels", *([repr(name) for name in h.labels] for h in (header, seen)))
    rows = list(_arff_rows(header.lines, header.attributes, path))
    columns: list[np.ndarray] = []
    targets = []
    for k, (name, values) in enumerate(header.attributes):
        column = np.array([row[k] for row in rows], dtype=np.float32)
        if name in header.labels:
            _check_label(name, values or [f"{v:g}" for v in np.unique(column)], path)
            targets.append((header.labels.index(name), column))
        elif values is None or len(values) <= 2:
            columns.append(column)
        else:
            columns += [(column == v).astype(np.float32) for v in range(len(values))]
    y = [column for _, column in sorted(targets, key=lambda pair: pair[0])]
    x = np.stack(columns, 1) if columns else np.zeros((len(rows), 0), np.float32)
    return LabelSets(tensor(x), tensor(np.stack(y, 1)), tuple(header.labels))


def _header(path: Path, labels: Sequence[str] | int | Path | None) -> _Header:
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    relation, attributes = _arff_header(lines, path)
    return _Header(attributes, _arff_labels(labels, relation, [name for name, _ in attributes], path), lines)


def _refuse_other(path: Path, what: str, found: list[str], seen: list[str]) -> None:
    for here, there in zip_longest(found, seen, fillvalue="nothing"):
        if here != there:
            raise ValueError(f"{path} has other {what} than the training part: {here} in the place of {there}")


def _kind(attribute: Attribute) -> str:
    """Alike for attributes that are read alike."""
    name, values = attribute
    return repr(name) if values is None or _is_binary(values) else f"{name!r} {{{','.join(values)}}}"


def _is_binary(values: Iterable[str]) -> bool:
    return set(values) <= {"0", "1"}


def _check_label(name: str, values: list[str], path: Path) -> None:
    if not _is_binary(values):
        some = ", ".join(values[:5]) + (", …" if len(values) > 5 else "")
        raise ValueError(f"{path}: the label {name!r} has the values {some}, not 0 and 1")


def _arff_header(lines: Iterable[str], path: Path) -> tuple[str, list[Attribute]]:
    relation = ""
    attributes: list[Attribute] = []
    for line in lines:
        line = line.strip()
        if line.lower().startswith("@relation"):
            relation = line
        elif line.lower().startswith("@attribute"):
            match = _ATTRIBUTE.match(line)
            if match is None:
                raise ValueError(f"{path}: {line!r} has no name and type of an attribute")
            name, kind, values = _unquoted(match[1]), match[2], match[3]
            if values is not None:
                attributes.append((name, [_unquoted(v) for v in _fields(values)]))
            elif kind.lower() in ("numeric", "real", "integer"):
                attributes.append((name, None))
            else:
                raise ValueError(f"{path}: attribute {name!r} is of type {kind}; numbers and nominal values are read")
        elif line.lower().startswith("@data"):
            return relation, attributes
    raise ValueError(f"{path} is no ARFF file: it has no @data")


def _arff_rows(lines: Iterable[str], attributes: list[Attribute], path: Path) -> Iterable[list[float]]:
    # What a sparse row leaves out is 0, or the first value of a nominal attribute.
    left_out = [_arff_value(a[1][0], a, path) if a[1] else 0.0 for a in attributes]
    for line in lines:
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        if line.startswith("{"):
            pairs = _sparse_cells(line, len(attributes), path)
        else:
            pairs = list(enumerate(_fields(line)))
            if len(pairs) != len(attributes):
                raise ValueError(f"{path}: a row has {len(pairs)} values for {len(attributes)} attributes")
        row = list(left_out)
        for k, text in pairs:
            row[k] = _arff_value(_unquoted(text), attributes[k], path)
        yield row


def _sparse_cells(line: str, width: int, path: Path) -> list[tuple[int, str]]:
    pairs = []
    for cell in filter(None, _fields(line.strip("{} "))):
        index, _, text = cell.replace("\t", " ").partition(" ")
        if not (index.isdecimal() and int(index) < width and text):
            raise ValueError(f"{path}: {cell!r} in a sparse row is not an index from 0 to {width - 1} and a value")
        pairs.append((int(index), text))
    return pairs


def _arff_value(text: str, attribute: Attribute, path: Path) -> float:
    name, values = attribute
    if text == "?":
        raise ValueError(f"{path}: a value of {name!r} is missing; fill it in first")
    try:
        return float(text) if values is None or (_is_binary(values) and text in values) else float(values.index(text))
    except ValueError:
        raise ValueError(f"{path}: {text!r} is no value of {name!r}") from None


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
