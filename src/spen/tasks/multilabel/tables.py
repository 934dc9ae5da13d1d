"""Tables of named columns, and how a model reads them: numbers, words as one column each, labels as 0 and 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MISSING = ("", "?", "na", "n/a", "nan", "null")
"""Texts that stand for a missing value, in lower case."""
_MAX_WORDS = 100


@dataclass(frozen=True)
class LabelSets:
    """N examples: ``x`` (N, D) inputs and ``y`` (N, L) in {0, 1}, both float32, with the names of the labels."""

    x: Tensor
    y: Tensor
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.dim() != 2 or self.y.dim() != 2 or len(self.x) != len(self.y):
            raise ValueError(
                f"inputs {tuple(self.x.shape)} and labels {tuple(self.y.shape)} must be tables of equal length"
            )
        if len(self.labels) != self.y.shape[1]:
            raise ValueError(f"{len(self.labels)} names for {self.y.shape[1]} labels")
        if not bool(self.x.isfinite().all()):
            raise ValueError("the inputs hold NaN or infinity: fill in what is missing first")
        if not bool(((self.y == 0) | (self.y == 1)).all()):
            raise ValueError("labels must be 0 or 1")

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, rows: Tensor) -> LabelSets:
        """Some of the examples."""
        return replace(self, x=self.x[rows], y=self.y[rows])


@dataclass(frozen=True)
class Table:
    """Columns by name: numbers (NaN if missing), or the text of the file. ``name`` is for messages."""

    name: str
    columns: dict[str, NDArray[Any]]
    targets: tuple[str, ...] = ()
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that a column may have, if the file lists them."""
    sparse: bool = False
    """Columns that the file does not have are 0."""
    lines: NDArray[Any] | None = None
    """The line of each row in the file, where the file has lines."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, rows: Tensor) -> Table:
        """Some of the rows; words are those of the whole table."""
        words = {name: kind for name in self.columns if not isinstance(kind := _kind(self, name), float)}
        columns = {n: c[rows.numpy()] for n, c in self.columns.items()}
        return replace(
            self, columns=columns, words=words, lines=None if self.lines is None else self.lines[rows.numpy()]
        )

    def cell(self, column: str, row: int) -> str:
        """A cell and its place, for messages."""
        place = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"{str(self.columns[column][row])[:40]!r} in {place}"


def make_table(name: str, names: Sequence[str], columns: Sequence[NDArray[Any]], **options: Any) -> Table:
    """A table; two columns of one name, and a table without rows, are refused."""
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{name} has the column {twice[0]!r} twice: give each column a name of its own")
    if not columns or not len(columns[0]):
        raise ValueError(f"{name} has no rows")
    return Table(name, dict(zip(names, columns, strict=True)), **options)


@dataclass(frozen=True)
class Schema:
    """The columns of the training table: for a number its mean, which replaces missing values; or the words."""

    inputs: Mapping[str, float | Sequence[str]]
    targets: Sequence[str]

    @classmethod
    def of(cls, table: Table) -> Schema:
        """Every column that is not a target is an input."""
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
        """The number of inputs that a row becomes."""
        return sum(1 if isinstance(kind, float | int) else len(kind) for kind in self.inputs.values())

    def named(self) -> dict[str, float]:
        """Each input in order, a word as ``column=word``, and what stands for a missing value."""
        found: dict[str, float] = {}
        for name, kind in self.inputs.items():
            found |= {name: kind} if isinstance(kind, float | int) else {f"{name}={word}": 0.0 for word in kind}
        return found

    def label_sets(self, table: Table) -> LabelSets:
        """Inputs and labels of a table that has both."""
        y = self.y(table)
        return LabelSets(self.x(table), y, tuple(self.targets))

    def x(self, table: Table) -> Tensor:  # (N, width)
        """The inputs, columns matched by name; missing and unknown columns are refused."""
        lacking = [name for name in self.inputs if name not in table.columns]
        known = {*self.inputs, *self.targets, *table.targets}
        unknown = [name for name in table.columns if name not in known]
        if lacking and not table.sparse:
            raise ValueError(f"{table.name} lacks {_columns(lacking)}, which the model was trained on")
        if unknown:
            raise ValueError(f"{table.name} has {_columns(unknown)}, which the model does not know: remove it")
        parts, missing = [], {}
        for name, kind in self.inputs.items():
            encoded = _encode(table, name, kind) if name in table.columns else (np.zeros((len(table), 1)), 0)
            parts.append(encoded[0])
            if encoded[1]:
                missing[name] = encoded[1]
        if missing:
            print(
                f"{table.name}: {sum(missing.values())} missing values in {_columns(list(missing))}; a number becomes "
                "the mean of the training rows, a word none of the column's words",
                file=sys.stderr,
            )
        return _tensor(np.concatenate(parts, 1))

    def y(self, table: Table) -> Tensor:  # (N, labels)
        """The labels, 0 and 1."""
        unseen = [name for name in table.targets if name not in self.targets]
        if unseen:
            raise ValueError(f"{table.name} has the label {unseen[0]}, which the training part does not")
        lacking = [name for name in self.targets if name not in table.columns]
        if lacking and not table.sparse:
            raise ValueError(f"{table.name} lacks the target {lacking[0]!r}")
        columns = [_label(table, n) if n in table.columns else np.zeros(len(table)) for n in self.targets]
        return _tensor(np.stack(columns, 1))


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _columns(names: Sequence[str]) -> str:
    some = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the column{'s' if len(names) > 1 else ''} {some}"


def _kind(table: Table, name: str) -> float | tuple[str, ...]:
    """The mean of a column of numbers, or the words of another."""
    if name in table.words:
        return table.words[name]
    column = table.columns[name]
    numbers = _numbers(column)
    if numbers is not None:
        _check_finite(table, name, numbers)
        known = numbers[~np.isnan(numbers)]
        if not len(known):
            raise ValueError(f"{table.name}: the column {name!r} has no value in any training row: remove it")
        return float(known.mean())
    if name not in table.targets:
        _check_words(table, name)
    words = tuple(sorted({str(word) for word in column if not _is_missing(word)}))
    if len(words) > _MAX_WORDS:
        raise ValueError(
            f"{table.name}: the column {name!r} has {len(words)} different words, more than {_MAX_WORDS}: "
            "remove it, or put numbers in its place"
        )
    return words


def _check_finite(table: Table, name: str, numbers: NDArray[np.float64]) -> None:
    infinite = np.abs(numbers) > np.finfo(np.float32).max
    if infinite.any():
        cell = table.cell(name, int(infinite.argmax()))
        raise ValueError(
            f"{table.name}: the column {name!r} holds an infinite number, {cell}: correct it, or leave it empty"
        )


def _check_words(table: Table, name: str) -> None:
    """Refuse a column of words whose cells are numbers for the most part."""
    known = [(i, text) for i, text in enumerate(map(str, table.columns[name])) if not _is_missing(text)]
    numbers = [_numbers(np.array([text.replace(",", ".")])) is not None for _, text in known]
    if 2 * sum(numbers) <= len(known):
        return
    commas = [i for (i, text), number in zip(known, numbers, strict=True) if number and "," in text]
    if commas:
        raise ValueError(
            f"{table.name}: the column {name!r} holds numbers with a comma, {table.cell(name, commas[0])}: write "
            "decimals with a point"
        )
    word = next(i for (i, _), number in zip(known, numbers, strict=True) if not number)
    raise ValueError(
        f"{table.name}: the column {name!r} holds numbers and words, {table.cell(name, word)}: leave such cells empty, "
        "or, if its numbers are names, put a letter before each"
    )


def _encode(table: Table, name: str, kind: float | Sequence[str]) -> tuple[NDArray[Any], int]:
    """(inputs (N, 1) or (N, words), the number of missing values)."""
    column = table.columns[name]
    if isinstance(kind, float | int):
        numbers = _numbers(column)
        if numbers is None:
            wrong = next(i for i, text in enumerate(column) if _numbers(np.array([text])) is None)
            point = (
                "; write decimals with a point" if _numbers(np.array([str(column[wrong]).replace(",", ".")])) else ""
            )
            raise ValueError(
                f"{table.name}: {table.cell(name, wrong)} is no number, as the column {name!r} needs{point}"
            )
        _check_finite(table, name, numbers)
        missing = np.isnan(numbers)
        return np.where(missing, kind, numbers)[:, None], int(missing.sum())
    texts = np.array(_texts(column))
    part = (texts[:, None] == np.array(kind, dtype=str)).astype(float)
    others = texts[part.sum(1) == 0]
    for text in others:
        if not _is_missing(text):
            known = ", ".join(list(kind)[:5]) + (", …" if len(kind) > 5 else "")
            raise ValueError(
                f"{table.name}: {str(text)!r} in the column {name!r} is none of the words it was trained on ({known}); "
                "correct it, or leave it empty"
            )
    return part, len(others)


def _label(table: Table, name: str) -> NDArray[np.float64]:
    column = table.columns[name]
    booleans = {"true": "1", "false": "0"}
    words = [booleans.get(str(v).lower(), str(v)) for v in column] if column.dtype.kind != "f" else column
    numbers = _numbers(np.asarray(words))
    if numbers is not None and np.isin(numbers, (0, 1)).all():
        return numbers
    texts = _texts(column)
    if any(map(_is_missing, texts)):
        raise ValueError(f"{table.name}: a value of the target {name!r} is missing; fill it in, or remove the row")
    values = sorted(set(texts))
    some = ", ".join(values[:5]) + (", …" if len(values) > 5 else "")
    raise ValueError(f"{table.name}: the target {name!r} has the values {some}; a target is 0 or 1 in every row")


def _texts(column: NDArray[Any]) -> list[str]:
    return [f"{v:g}" if column.dtype.kind == "f" else str(v) for v in column]


def _is_missing(text: object) -> bool:
    return str(text).strip().lower() in MISSING


def _numbers(column: NDArray[Any]) -> NDArray[np.float64] | None:
    """The column as numbers, NaN if missing; None if it has a word."""
    if column.dtype.kind == "f":
        return column
    try:
        return np.array([np.nan if _is_missing(text) else float(text) for text in column])
    except ValueError:
        return None
