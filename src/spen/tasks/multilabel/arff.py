"""ARFF files with several labels, dense or sparse, as MULAN and MEKA write them."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spen.tasks.multilabel.tables import Table, make_table

Attribute = tuple[str, list[str] | None]  # its name, and its values if nominal
_ATTRIBUTE = re.compile(
    r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)(?:\s+([^\s{].*)|\s*\{(.*)\}.*)$""", re.IGNORECASE
)


def read_arff(path: Path, text: str) -> Table:
    """A table. Its targets come from MEKA's ``-C`` in the relation's name, or from a MULAN XML file beside it.

    Nominal attributes of values 0 and 1 are numbers. An attribute that a sparse row omits is 0, or its first value.
    """
    lines = iter(text.splitlines())
    relation, attributes = _header(lines, path)
    names = [name for name, _ in attributes]
    columns = [np.array(column) for column in zip(*_rows(lines, attributes, path), strict=True)]
    words = {name: tuple(values) for name, values in attributes if values is not None and not _is_binary(values)}
    return make_table(str(path), names, columns, targets=_targets(relation, names, path), words=words)


def read_labels(xml: Path) -> list[str]:
    """The names of the labels in MULAN's XML file."""
    try:
        tags = [e for e in ElementTree.parse(xml).iter() if e.tag.split("}")[-1] == "label"]
        return [tag.attrib["name"] for tag in tags]
    except (ElementTree.ParseError, KeyError) as error:
        raise ValueError(f"{xml} is no list of labels as MULAN writes it: {error}") from None


def _targets(relation: str, names: list[str], path: Path) -> tuple[str, ...]:
    meka = re.search(r"-C\s+(-?\d+)", relation)
    if meka:
        count = int(meka[1])
        return tuple(names[:count] if count > 0 else names[count:])
    # MULAN's yeast-train.arff has yeast.xml beside it.
    stems = dict.fromkeys((path.stem, re.sub(r"[-_]?(train|test)$", "", path.stem, flags=re.IGNORECASE)))
    found = next((xml for stem in stems if (xml := path.with_name(f"{stem}.xml")).exists()), None)
    labels = [] if found is None else read_labels(found)
    unknown = [name for name in labels if name not in names]
    if unknown:
        raise ValueError(f"{found} has the label {unknown[0]!r}, which {path} does not: it belongs to another file")
    return tuple(labels)


def _header(lines: Iterable[str], path: Path) -> tuple[str, list[Attribute]]:
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


def _rows(lines: Iterable[str], attributes: list[Attribute], path: Path) -> Iterator[list[Any]]:
    omitted = [_value(a[1][0], a, path) if a[1] else 0.0 for a in attributes]
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
        row = list(omitted)
        for k, text in pairs:
            row[k] = _value(_unquoted(text), attributes[k], path)
        yield row


def _sparse_cells(line: str, width: int, path: Path) -> list[tuple[int, str]]:
    pairs = []
    for cell in filter(None, _fields(line.strip("{} "))):
        index, _, text = cell.replace("\t", " ").partition(" ")
        if not (index.isdecimal() and int(index) < width and text):
            raise ValueError(f"{path}: {cell!r} in a sparse row is not an index from 0 to {width - 1} and a value")
        pairs.append((int(index), text))
    return pairs


def _value(text: str, attribute: Attribute, path: Path) -> float | str:
    name, values = attribute
    number = values is None or _is_binary(values)
    if text == "?":
        return float("nan") if number else ""
    try:
        if values is None or text in values:
            return float(text) if number else text
    except ValueError:
        pass
    raise ValueError(f"{path}: {text!r} is no value of {name!r}")


def _is_binary(values: Iterable[str]) -> bool:
    return set(values) <= {"0", "1"}


def _fields(text: str) -> list[str]:
    quote = '"' if '"' in text else "'"
    return [field.strip() for field in next(csv.reader([text], quotechar=quote, skipinitialspace=True), [])]


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return re.sub(r"\\(.)", r"\1", text)
