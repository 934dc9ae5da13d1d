"""`spen data fetch NAME`: tables of OpenML through scikit-learn, which checks each file's MD5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spen.storage import replacing
from spen.tasks.locations import cache_folder, data_folders

OPENML = {
    "birds": 40588,
    "emotions": 40589,
    "enron": 40590,
    "genbase": 40591,
    "langlog": 40593,
    "reuters": 40594,
    "scene": 40595,
    "slashdot": 40596,
    "yeast": 40597,
}
"""Data sets by their number at OpenML."""
MULAN = ("bibtex", "delicious")
ADDRESS = "http://mulan.sourceforge.net/datasets-mlc.html"


def __getattr__(name: str) -> Callable[[Path | None], list[Path]]:
    if name in OPENML or name in MULAN:
        return partial(fetch, name)
    raise AttributeError(name)


def fetch(name: str, folder: Path | None = None) -> list[Path]:
    """NAME.npz with ``x y feature_names label_names`` in the data folder; what is there is not fetched again."""
    path = (folder or data_folders()[0] / "multilabel") / f"{name}.npz"
    if path.is_file():
        return [path]
    if name in MULAN:
        raise ValueError(
            f"{name}.rar is at {ADDRESS} and has to be unpacked by hand: then give --data {name}-train.arff, with "
            f"{name}-test.arff and {name}.xml beside it; or put {path.name} into {path.parent}"
        )
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(
            data_id=OPENML[name], data_home=str(cache_folder()), as_frame=False, parser="liac-arff", n_retries=1
        )
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"https://www.openml.org/d/{OPENML[name]} could not be fetched ({type(error).__name__}: {error}); check "
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
