"""A table of named columns, and how a model reads it: numbers, words as one column each, labels as 0 and 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spen.tasks.multilabel.label_sets import LabelSets, tensor

__all__ = ["MISSING", "Schema", "Table", "named"]

MISSING = ("", "?", "na", "n/a", "nan", "null")
"""What stands for a missing value in a text file, in small letters."""
_MOST_WORDS = 100


@dataclass(frozen=True)
class Table:
    """Columns by name: numbers (NaN where missing), or text as the file has it. ``name`` is for messages."""

    name: str
    columns: dict[str, NDArray[Any]]
    targets: tuple[str, ...] = ()
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that a column may have, where the file says so."""
    sparse: bool = False
    """Columns that are not there are 0."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, rows: Tensor) -> Table:
        """Some of the rows; words are those of the whole table."""
        words = {name: kind for name in self.columns if not isinstance(kind := _kind(self, name), float)}
        return replace(self, columns={n: c[rows.numpy()] for n, c in self.columns.items()}, words=words)


def named(name: str, names: Sequence[str], columns: Sequence[NDArray[Any]], **more: Any) -> Table:
    """A table; two columns of one name, and a table without rows, are refused."""
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{name} has the column {twice[0]!r} twice: give each column a name of its own")
    if not columns or not len(columns[0]):
        raise ValueError(f"{name} has no rows")
    return Table(name, dict(zip(names, columns, strict=True)), **more)


@dataclass(frozen=True)
class Schema:
    """What the columns of the training table were: a number's mean, which stands for missing ones, or words."""

    inputs: Mapping[str, float | Sequence[str]]
    targets: Sequence[str]

    @classmethod
    def of(cls, table: Table) -> Schema:
        """Every column that is no target is an input."""
        inputs = {n: _kind(table, n) for n in table.columns if n not in table.targets}
        if not inputs:
            raise ValueError(f"every column of {table.name} is a target: there is nothing to predict from")
        return cls(inputs, table.targets)

    @classmethod
    def numbered(cls, inputs: int, targets: int) -> Schema:
        """For tensors, whose columns have no names."""
        return cls({f"x{i}": 0.0 for i in range(inputs)}, tuple(str(i) for i in range(targets)))

    def describe(self) -> dict[str, Any]:
        """As plain values; ``Schema(**values)`` is the inverse."""
        return asdict(self)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(1 if isinstance(kind, float | int) else len(kind) for kind in self.inputs.values())

    def label_sets(self, table: Table) -> LabelSets:
        """Inputs and labels of a table that has both."""
        y = self.y(table)
        return LabelSets(self.x(table), y, tuple(self.targets))

    def x(self, table: Table) -> Tensor:  # (N, width)
        """The inputs, columns matched by name; columns that are missing or unknown are refused."""
        lacking = [name for name in self.inputs if name not in table.columns]
        unknown = [
            name for name in table.columns if name not in self.inputs and name not in (*self.targets, *table.targets)
        ]
        if lacking and not table.sparse:
            raise ValueError(f"{table.name} lacks {_columns(lacking)}, which the model was trained on")
        if unknown:
            raise ValueError(f"{table.name} has {_columns(unknown)}, which the model does not know: remove it")
        parts, missing, zeros = [], {}, np.zeros(len(table))
        for name, kind in self.inputs.items():
            part, gone = _encoded(table, name, kind) if name in table.columns else (zeros[:, None], 0)
            parts.append(part)
            if gone:
                missing[name] = gone
        if missing:
            print(
                f"{table.name}: {sum(missing.values())} missing values in {_columns(list(missing))}; a number becomes "
                "the mean of the training rows, a word none of the column's words",
                file=sys.stderr,
            )
        return tensor(np.concatenate(parts, 1))

    def y(self, table: Table) -> Tensor:  # (N, labels)
        """The labels, 0 and 1."""
        unseen = [name for name in table.targets if name not in self.targets]
        if unseen:
            raise ValueError(f"{table.name} has the label {unseen[0]}, which the training part does not")
        lacking = [name for name in self.targets if name not in table.columns]
        if lacking and not table.sparse:
            raise ValueError(f"{table.name} lacks the target {lacking[0]!r}")
        columns = [_label(table, n) if n in table.columns else np.zeros(len(table)) for n in self.targets]
        return tensor(np.stack(columns, 1))


def _columns(names: Sequence[str]) -> str:
    some = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the column{'s' if len(names) > 1 else ''} {some}"


def _kind(table: Table, name: str) -> float | tuple[str, ...]:
    if name in table.words:
        return table.words[name]
    column = table.columns[name]
    numbers = _numbers(column)
    if numbers is not None:
        known = numbers[~np.isnan(numbers)]
        if not len(known):
            raise ValueError(f"{table.name}: the column {name!r} has no value in any training row: remove it")
        return float(known.mean())
    words = tuple(sorted({str(word) for word in column if not _is_missing(word)}))
    if len(words) > _MOST_WORDS:
        raise ValueError(
            f"{table.name}: the column {name!r} has {len(words)} different words, more than {_MOST_WORDS}: "
            "remove it, or put numbers in its place"
        )
    return words


def _encoded(table: Table, name: str, kind: float | Sequence[str]) -> tuple[NDArray[Any], int]:
    """(the columns, how many values are missing)."""
    column = table.columns[name]
    if isinstance(kind, float | int):
        numbers = _numbers(column)
        if numbers is None:
            wrong = next(text for text in column if not _is_missing(text) and _number(text) is None)
            raise ValueError(f"{table.name}: {wrong!s:.40} in the column {name!r} is no number")
        gone = np.isnan(numbers)
        return np.where(gone, kind, numbers)[:, None], int(gone.sum())
    texts = [f"{v:g}" for v in column] if column.dtype.kind == "f" else [str(v) for v in column]
    index = {word: i for i, word in enumerate(kind)}
    part, gone_words = np.zeros((len(texts), len(kind))), 0
    for row, text in enumerate(texts):
        if text in index:
            part[row, index[text]] = 1
        elif _is_missing(text):
            gone_words += 1
        else:
            known = ", ".join(list(kind)[:5]) + (", …" if len(kind) > 5 else "")
            raise ValueError(
                f"{table.name}: {text!r} in the column {name!r} is none of the words it was trained on ({known}); "
                "correct it, or leave it empty"
            )
    return part, gone_words


def _label(table: Table, name: str) -> NDArray[np.float64]:
    column = table.columns[name]
    words = {"true": "1", "false": "0"}
    text = column.dtype.kind != "f"
    numbers = _numbers(np.array([words.get(str(v).lower(), str(v)) for v in column])) if text else column
    if numbers is not None and np.isin(numbers, (0, 1)).all():
        return numbers
    if any(_is_missing(value) for value in column):
        raise ValueError(f"{table.name}: a value of the target {name!r} is missing; fill it in, or remove the row")
    values = sorted({str(v) if text else f"{v:g}" for v in column})
    some = ", ".join(values[:5]) + (", …" if len(values) > 5 else "")
    raise ValueError(f"{table.name}: the target {name!r} has the values {some}; a target is 0 or 1 in every row")


def _is_missing(text: object) -> bool:
    return str(text).strip().lower() in MISSING


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _numbers(column: NDArray[Any]) -> NDArray[np.float64] | None:
    """The column as numbers, NaN where missing; None if a word is in it."""
    if column.dtype.kind == "f":
        return column
    try:
        return np.array([np.nan if _is_missing(text) else float(text) for text in column])
    except ValueError:
        return None
