"""Fetching EWT from a host of our own, and knowing what came."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spen.tasks.srl import obtain
from spen.tasks.srl.formats.ewt import make_ewt, read_tsv, tsv_text
from spen.tasks.srl.obtain import REPOSITORIES, fetch_ewt, find_archives, make
from spen.tasks.srl.sentences import BadCorpus

from . import raw_ewt


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for (repository, commit), files in zip(REPOSITORIES.items(), (raw_ewt.TREEBANK, raw_ewt.PROPBANK), strict=True):
        folder = tmp_path / "www" / repository / "archive"
        folder.mkdir(parents=True)
        raw_ewt.as_tar(files, folder / f"{commit}.tar.gz", "repository/")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_archives_are_fetched_once_and_checked(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pinned = tmp_path / "raw", f"{tmp_path / 'raw'}:0: the train split differs from the pinned one; delete the"
    assert find_archives(folder) == {}
    with pytest.raises(BadCorpus) as error:
        fetch_ewt(folder, host=host)
    assert str(error.value) == f"{pinned} archives there and fetch them again"
    with pytest.raises(BadCorpus, match="the train split differs from the pinned one"):
        make(folder, tmp_path / "out", progress=lambda things, *_: iter(things))
    archives = list(find_archives(folder).values())
    assert [path.name for path in archives] == ["UD_English-EWT-15d613d.tar.gz", "propbank-release-4abade0.tar.gz"]
    splits, _ = make_ewt(*archives)
    joined = {split: hashlib.sha256(tsv_text(s).encode()).hexdigest() for split, s in splits.items()}
    monkeypatch.setattr(obtain, "JOINED", joined)
    assert fetch_ewt(folder, host="http://127.0.0.1:9") == archives, "what is there is not fetched again"
    made = make(folder, tmp_path / "out", progress=lambda things, *_: iter(things))
    assert (made["sizes"], made["dropped"]) == ({"train": 4, "dev": 1, "test": 0}, 4)
    assert read_tsv(tmp_path / "out" / "ewt-srl.train.tsv.gz") == splits["train"]


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError) as error:
        fetch_ewt(tmp_path, host="http://127.0.0.1:9")
    message = str(error.value)
    assert message.startswith(
        "http://127.0.0.1:9/UniversalDependencies/UD_English-EWT/archive/15d613d.tar.gz could not be"
    )
    assert message.endswith(f"check the network, or put UD_English-EWT-15d613d.tar.gz into {tmp_path} yourself")
