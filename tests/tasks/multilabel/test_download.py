"""`spen data fetch` of label sets, with a stand-in for OpenML."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse
from sklearn.utils import Bunch

from spen.tasks.multilabel.task import DATASETS
from tests.cli.world import spen
from tests.tasks.multilabel.small import read

TABLE = Bunch(
    data=np.array([[0.5, 1, 0], [2.5, 0, 1], [1.5, 2, 1]]),
    feature_names=["length", "key", "live"],
    categories={"key": ["C", "D", "E"], "live": ["0", "1"]},
    target=np.array([["TRUE", "FALSE"], ["FALSE", "TRUE"], ["TRUE", "TRUE"]], dtype=object),
    target_names=["happy", "calm"],
)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_table_of_openml_becomes_an_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparse: bool) -> None:
    asked = []

    def fetch_openml(**options: Any) -> Bunch:
        asked.append(options["data_id"])
        return Bunch(**{**TABLE, "data": scipy.sparse.csr_matrix(TABLE.data) if sparse else TABLE.data})

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    monkeypatch.setenv("SPEN_DATA", str(tmp_path))
    path = tmp_path / "multilabel" / "yeast.npz"
    for _ in range(2):
        assert spen("data", "fetch", "yeast").out == f"{path}\n"
    assert asked == [DATASETS["yeast"][1]], "the second time it was there"
    found = read(path)
    assert found.x.tolist() == [[0.5, 0, 1, 0, 0], [2.5, 1, 0, 0, 1], [1.5, 0, 0, 1, 1]]
    assert found.y.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert found.labels == ("happy", "calm")
    with np.load(path) as file:
        assert file["feature_names"].tolist() == ["length", "key=C", "key=D", "key=E", "live"]


def test_a_download_that_is_impossible_names_file_place_and_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch_openml(**options: Any) -> Bunch:
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    answer = spen("data", "fetch", "scene", "--folder", str(tmp_path))
    assert answer.status == 2
    assert answer.err == (
        "spen: https://www.openml.org/d/40595 could not be fetched (URLError: <urlopen error no network>); check the "
        "network, or download its ARFF file there and give --data scene.arff with --targets\n"
    )
    answer = spen("data", "fetch", "bibtex", "--folder", str(tmp_path))
    assert answer.status == 2
    assert answer.err == (
        "spen: bibtex.rar is at http://mulan.sourceforge.net/datasets-mlc.html and has to be unpacked by hand: then "
        "give --data bibtex-train.arff, with bibtex-test.arff and bibtex.xml beside it; or put bibtex.npz into "
        f"{tmp_path}\n"
    )
