"""Label sets from files: npz, ARFF (plain or sparse, with a list of labels beside it) and LIBSVM."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from spen.tasks.locations import find_data
from spen.tasks.multilabel.arff import read_arff
from spen.tasks.multilabel.label_sets import LabelSets, tensor


@dataclass(frozen=True)
class Splits:
    """Training, development and test examples. The test examples are for the last figure alone."""

    train: LabelSets
    dev: LabelSets
    test: LabelSets


def load(
    name: str | Path, *, dev: float = 0.1, seed: int = 0, labels: Sequence[str] | int | Path | None = None
) -> Splits:
    """A data set by name ("bibtex", "delicious") or by path, with development data carved out of the training part.

    An npz holds its own test part. An ARFF or LIBSVM file is taken as the training part and its test part is looked
    for beside it: ``NAME-train.arff`` and ``NAME-test.arff``, or ``NAME_train.svm`` and ``NAME_test.svm``.
    ``labels`` says which attributes of an ARFF are labels.
    """
    path = Path(name)
    if path.suffix == "":
        path = find_data("multilabel", f"{name}.npz")
    if path.suffix == ".npz":
        train, test = read_npz(path)
    else:
        beside = _test_part(path)
        if path.suffix == ".arff":
            train, test = read_arff(path, labels), read_arff(beside, labels, train=path)
        else:
            zero_based = any(_has_index_zero(_text(part)) for part in (path, beside))
            train = read_libsvm(path, zero_based=zero_based)
            test = read_libsvm(beside, inputs=train.x.shape[1], labels=train.labels, zero_based=zero_based)
    kept, held = hold_out(train, dev, seed)
    return Splits(kept, held, test)


def hold_out(data: LabelSets, fraction: float, seed: int) -> tuple[LabelSets, LabelSets]:
    """(the rest, a random ``fraction``): which examples depends on the seed and the number of examples alone."""
    if not 0 < fraction < 1:
        raise ValueError(f"the development part must be a fraction between 0 and 1, not {fraction}")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * len(data)))
    if held >= len(data):
        raise ValueError(f"{len(data)} examples are too few to hold some out")
    return data.rows(order[held:]), data.rows(order[:held])


def read_npz(path: Path | str) -> tuple[LabelSets, LabelSets]:
    """(train, test) from ``x_train y_train x_test y_test`` and, if there, ``label_names``."""
    with _open_npz(path) as file:
        needed = ["x_train", "y_train", "x_test", "y_test"]
        missing = [key for key in needed if key not in file]
        if missing:
            raise ValueError(f"{path} has no {', '.join(missing)}; a multi-label npz holds {' '.join(needed)}")
        names = file["label_names"].tolist() if "label_names" in file else range(file["y_train"].shape[1])
        labels = tuple(str(name) for name in names)
        parts = [LabelSets(tensor(file[f"x_{s}"]), tensor(file[f"y_{s}"]), labels) for s in ("train", "test")]
    wide, seen = (part.x.shape[1] for part in reversed(parts))
    if wide != seen:
        raise ValueError(f"{path}: x_test has {wide} columns, but x_train has {seen}")
    return parts[0], parts[1]


def _open_npz(path: Path | str) -> NpzFile:
    try:
        file = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, BadZipFile, EOFError):  # numpy takes what it does not know for a pickle
        raise ValueError(f"{path} is not an npz file, or is cut short") from None
    if not isinstance(file, NpzFile):
        raise ValueError(f"{path} holds one array; a multi-label npz holds several: save it with numpy.savez")
    return file


def read_libsvm(
    path: Path | str,
    *,
    inputs: int | None = None,
    labels: Sequence[str] | None = None,
    zero_based: bool | None = None,
) -> LabelSets:
    """A multi-label LIBSVM file: ``label,label index:value index:value …`` on each line, indices from 1 (or 0).

    ``inputs`` and ``labels`` fix the width and the label names, as known from the training part. ``zero_based`` says
    that indices begin with 0; without it they do if the file has that index.
    """
    from sklearn.datasets import load_svmlight_file

    text = _text(path)
    zero_based = _has_index_zero(text) if zero_based is None else zero_based
    try:
        x, sets = load_svmlight_file(
            io.BytesIO(text.encode()), n_features=inputs, multilabel=True, dtype=np.float32, zero_based=zero_based
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not LIBSVM (label,label index:value …): {error}") from None
    found = sorted({value for row in sets for value in row})
    names = tuple(_number(value) for value in found) if labels is None else tuple(labels)
    index = {name: i for i, name in enumerate(names)}
    y = np.zeros((x.shape[0], len(names)), np.float32)
    for n, row in enumerate(sets):
        for value in row:
            if _number(value) not in index:
                raise ValueError(f"{path} has the label {_number(value)}, which the training part does not")
            y[n, index[_number(value)]] = 1
    return LabelSets(tensor(x.toarray()), tensor(y), names)


def _text(path: Path | str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _has_index_zero(text: str) -> bool:
    # A set of no labels is written as an empty first field, so an index may begin a line; comments begin with #.
    return re.search(r"(?m)^(?:[^#\n]*\s)?0:", text) is not None


def _test_part(path: Path) -> Path:
    beside = path.with_name(re.sub(r"train(?=\.\w+$)", "test", path.name))
    if beside == path or not beside.exists():
        raise FileNotFoundError(f"no test part beside {path}: name the two files NAME-train and NAME-test")
    return beside


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
