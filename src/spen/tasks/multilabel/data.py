"""Tables with label sets from files (CSV, ARFF, parquet, npz, LIBSVM), and their split into three parts."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from spen.tasks.locations import find_data
from spen.tasks.multilabel.arff import read_arff, read_labels
from spen.tasks.multilabel.tables import LabelSets, Schema, Table, make_table

Array = NDArray[Any]
Rows = TypeVar("Rows", LabelSets, Table)
FORMATS = (".csv", ".tsv", ".arff", ".npz", ".parquet", ".svm", ".libsvm", ".txt")


@dataclass(frozen=True)
class Splits:
    """Training, development and test examples. The test examples are for the last figure alone."""

    train: LabelSets
    dev: LabelSets
    test: LabelSets
    schema: Schema | None = None
    """How they were read; None for tensors of your own."""


def load(name: str | Path, targets: Sequence[str] = (), *, dev: float = 0.1, schema: Schema | None = None) -> Splits:
    """A data set by its name ("bibtex") or by the path of a file; ``dev`` is the development part of the training rows.

    ``NAME-train.csv`` has its test part beside it, ``NAME-test.csv``, in every format; an npz of ``x_train y_train
    x_test y_test`` has both. Of a single table a fifth, drawn at random, is the test part. ``targets`` names the
    columns that are labels, if the file does not; ``schema`` is that of an earlier training.
    """
    tables = read_parts(name, targets)
    if len(tables) == 1:
        tables = list(split_test(tables[0]))
    schema = schema or Schema.of(tables[0])
    train, test = (schema.label_sets(table) for table in tables)
    return Splits(*hold_out(train, dev, 0), test, schema)


def split_test(table: Table) -> tuple[Table, Table]:
    """(rows for training and development, test rows) of a single table."""
    return hold_out(table, 0.2, 1)


def read_parts(name: str | Path, targets: Sequence[str] = ()) -> list[Table]:
    """[the training part, the test part], or a single table; each knows which of its columns are labels."""
    path = locate(name)
    tables = _read_npz(path) if path.suffix == ".npz" else [read_table(part) for part in _files(path)]
    if targets:
        chosen = _chosen(targets, tables[0])
        tables = [replace(table, targets=chosen) for table in tables]
    if not tables[0].targets:
        some = ", ".join(list(tables[0].columns)[:8])
        raise ValueError(f"{path} does not say which columns are labels: give --targets, some of {some}, …")
    return tables


def locate(name: str | Path) -> Path:
    """The file of a data set's name or of a path."""
    path = Path(name)
    return path.resolve() if path.suffix else find_data("multilabel", f"{name}.npz")


def read_table(path: Path) -> Table:
    """One file. An npz holds ``x`` and, if it has labels, ``y``; a file without a suffix (stdin) is CSV."""
    if path.suffix and path.suffix not in FORMATS:
        raise ValueError(f"{path} should end in one of {', '.join(FORMATS)}")
    if path.suffix == ".npz":
        tables = _read_npz(path)
        if len(tables) > 1:
            raise ValueError(f"{path} holds two parts; the npz of one table holds x")
        return tables[0]
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    if not text.strip():
        raise ValueError(f"{path} is empty")
    if path.suffix == ".arff":
        return read_arff(path, text)
    return read_csv(path, text) if path.suffix in ("", ".csv", ".tsv") else read_libsvm(path, text)


def hold_out(data: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(the other rows, a random ``fraction``). The choice depends on the seed and the number of rows alone."""
    if not 0 < fraction < 1:
        raise ValueError(f"the development part must be a fraction between 0 and 1, not {fraction}")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * len(data)))
    if held >= len(data):
        raise ValueError(f"{len(data)} examples are too few to hold some out")
    return data.rows(order[held:]), data.rows(order[:held])


def read_csv(path: Path, text: str) -> Table:
    """A header and rows, separated by commas, semicolons or tabs, whichever the header has most of."""
    first = text.lstrip().splitlines()[0]
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), skipinitialspace=True)
    names = [name.strip() for name in next(row for row in rows if row)]
    cells, lines = [], []
    for row in filter(None, rows):
        if len(row) != len(names):
            raise ValueError(f"{path}: line {rows.line_num} has {len(row)} values for {len(names)} columns")
        cells.append(row)
        lines.append(rows.line_num)
    columns = [np.array([v.strip() for v in column]) for column in zip(*cells, strict=True)]
    return make_table(str(path), names, columns, lines=np.array(lines))


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ValueError(f"{path} needs pyarrow: pip install pyarrow, or save the table as CSV") from None
    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None
    columns = [np.array(["" if value is None else str(value) for value in c.to_pylist()]) for c in table.columns]
    return make_table(str(path), list(table.column_names), columns)


def _read_npz(path: Path) -> list[Table]:
    """[train, test] from ``x_train y_train x_test y_test``, or one table from ``x`` and ``y``."""
    with _open_npz(path) as file:
        parts = [""] if "x" in file else ["_train", "_test"]
        missing = [key for part in parts for key in (f"x{part}", f"y{part}") if part and key not in file]
        if missing:
            holds = "a multi-label npz holds x_train y_train x_test y_test, or x and y"
            raise ValueError(f"{path} has no {', '.join(missing)}; {holds}")
        try:
            names = (file.get("feature_names"), file.get("label_names"))
            arrays = [(file[f"x{part}"], file.get(f"y{part}")) for part in parts]
        except (OSError, ValueError, BadZipFile, EOFError):
            raise ValueError(
                f"{path} holds an array that cannot be read: save x and y as numbers, and names as text; dtype=object, "
                "which needs a pickle, is not read"
            ) from None
    return [_from_arrays(str(path), x, y, *names) for x, y in arrays]


def _from_arrays(name: str, x: Array, y: Array | None, inputs: Array | None, labels: Array | None) -> Table:
    y = np.zeros((len(x), 0)) if y is None else y
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(f"{name}: inputs {x.shape} and labels {y.shape} must be tables of equal length")
    called = [f"x{i}" for i in range(x.shape[1])] if inputs is None else [str(n) for n in inputs]
    targets = [str(n) for n in (range(y.shape[1]) if labels is None or not y.shape[1] else labels)]
    if len(called) != x.shape[1] or len(targets) != y.shape[1]:
        raise ValueError(f"{name}: {len(called)} and {len(targets)} names for {x.shape[1]} inputs, {y.shape[1]} labels")
    try:
        columns = [*x.T.astype(float), *y.T.astype(float)]
    except ValueError:
        raise ValueError(f"{name}: inputs of type {x.dtype} and labels of type {y.dtype} must be numbers") from None
    return make_table(name, called + targets, columns, targets=tuple(targets))


def _open_npz(path: Path) -> NpzFile:
    try:
        file = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, BadZipFile, EOFError):  # numpy takes what it does not know for a pickle
        raise ValueError(f"{path} is not an npz file, or is cut short") from None
    if not isinstance(file, NpzFile):
        raise ValueError(f"{path} holds one array; a multi-label npz holds several: save it with numpy.savez")
    return file


def read_libsvm(path: Path, text: str) -> Table:
    """``label,label index:value index:value …`` on each line; columns are named by their indices."""
    from sklearn.datasets import load_svmlight_file

    try:
        x, sets = load_svmlight_file(io.BytesIO(text.encode()), multilabel=True, zero_based=True)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not LIBSVM (label,label index:value …): {error}") from None
    labels = [f"{value:g}" for value in sorted({value for row in sets for value in row})]
    y = [np.array([float(label) in row for row in sets], dtype=float) for label in labels]
    used = range(int(x[:, :1].nnz == 0), x.shape[1])  # indices begin with 0 or with 1
    dense = x.toarray()
    names = [f"x{i}" for i in used] + labels
    return make_table(str(path), names, [*(dense[:, i] for i in used), *y], targets=tuple(labels), sparse=True)


def _chosen(targets: Sequence[str], table: Table) -> tuple[str, ...]:
    """The columns that are named, in a MULAN XML file if that is what is given."""
    source = "--targets"
    if len(targets) == 1 and targets[0].endswith(".xml"):
        source, targets = targets[0], read_labels(Path(targets[0]))
    twice = [name for name in targets if list(targets).count(name) > 1]
    if twice:
        raise ValueError(f"{source} has {twice[0]!r} twice: name each target once")
    unknown = [name for name in targets if name not in table.columns]
    if unknown:
        some = ", ".join(list(table.columns)[-8:])
        raise ValueError(f"{table.name} has no column {unknown[0]!r}, which {source} names; its last ones are {some}")
    return tuple(targets)


def _files(path: Path) -> list[Path]:
    """The file and, if it is called NAME-train, its test part."""
    beside = path.with_name(re.sub(r"(?i)train(?=\.\w+$)", "test", path.name))
    if beside != path and not beside.exists():
        raise FileNotFoundError(f"no test part beside {path}: call it {beside.name}, or give the table another name")
    return [path] if beside == path else [path, beside]
