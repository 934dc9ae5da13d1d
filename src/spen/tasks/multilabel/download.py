"""`spen data fetch NAME`: tables of OpenML through scikit-learn, which checks each file's MD5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spen.storage import replacing
from spen.tasks.locations import cache_folder, data_folders
from spen.tasks.multilabel.task import DATASETS


def __getattr__(name: str) -> Callable[[Path | None], list[Path]]:
    """``download.NAME(folder)`` fetches the data set NAME."""
    if name in DATASETS:
        return partial(fetch, name)
    raise AttributeError(name)


def fetch(name: str, folder: Path | None = None) -> list[Path]:
    """NAME.npz with ``x y feature_names label_names`` in the data folder; an existing file is not fetched again."""
    path = (folder or data_folders()[0] / "multilabel") / f"{name}.npz"
    if path.is_file():
        return [path]
    _, number = DATASETS[name]
    if number is None:
        raise ValueError(
            f"{name}.rar is at http://mulan.sourceforge.net/datasets-mlc.html and has to be unpacked by hand: then "
            f"give --data {name}-train.arff, with {name}-test.arff and {name}.xml beside it; or put {path.name} into "
            f"{path.parent}"
        )
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(
            data_id=number, data_home=str(cache_folder()), as_frame=False, parser="liac-arff", n_retries=1
        )
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"https://www.openml.org/d/{number} could not be fetched ({type(error).__name__}: {error}); check "
            f"the network, or download its ARFF file there and give --data {name}.arff with --targets"
        ) from error
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **_arrays(found))
    return [path]


def _arrays(found: Any) -> dict[str, Any]:
    """A nominal input becomes a column for each of its values, unless these are 0 and 1."""
    dense = found.data.toarray() if hasattr(found.data, "toarray") else found.data
    names, columns = [], []
    for name, column in zip(found.feature_names, np.asarray(dense, dtype=float).T, strict=True):
        words = [str(word) for word in (found.categories or {}).get(name) or []]
        if not words or words == ["0", "1"]:
            names.append(name)
            columns.append(column)
        for code, word in enumerate(words if words != ["0", "1"] else []):
            names.append(f"{name}={word}")
            columns.append(column == code)
    y = [[str(value).lower() in ("1", "1.0", "true") for value in row] for row in found.target]
    return {
        "x": np.stack(columns, 1).astype(np.float32),
        "y": np.array(y, dtype=np.uint8),
        "feature_names": np.array(names),
        "label_names": np.array(found.target_names),
    }
