"""Fetching EWT from a host of our own, and knowing what came."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spen.tasks.srl import download
from spen.tasks.srl.download import PROPBANK, TREEBANK, check_ewt, fetch_ewt, find_archives
from spen.tasks.srl.formats.ewt import make_ewt, tsv_text
from spen.tasks.srl.sentences import BadCorpus

from . import raw_ewt


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for source, files in ((TREEBANK, raw_ewt.TREEBANK), (PROPBANK, raw_ewt.PROPBANK)):
        folder = tmp_path / "www" / source.repository / "archive"
        folder.mkdir(parents=True)
        raw_ewt.as_tar(files, folder / f"{source.commit}.tar.gz", "repository/")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_archives_are_fetched_once_and_checked(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "raw"
    assert find_archives(folder) is None
    archives = fetch_ewt(folder, host=host, check=False)
    assert [path.name for path in archives] == ["UD_English-EWT-15d613d.tar.gz", "propbank-release-4abade0.tar.gz"]
    assert find_archives(folder) == archives
    assert fetch_ewt(folder, host="http://127.0.0.1:9", check=False) == archives, "what is there is not fetched again"
    with pytest.raises(BadCorpus) as error:
        fetch_ewt(folder, host=host)
    assert str(error.value) == (
        f"{folder}:0: the train split differs from the pinned one; delete the archives there and fetch them again"
    )
    join = make_ewt(*archives)
    joined = {split: hashlib.sha256(tsv_text(s).encode()).hexdigest() for split, s in join.splits.items()}
    monkeypatch.setattr(download, "JOINED", joined)
    assert fetch_ewt(folder, host=host) == archives
    check_ewt(dict(zip(join.splits, join.write(tmp_path / "tsv"), strict=True)), folder)


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError) as error:
        fetch_ewt(tmp_path, host="http://127.0.0.1:9")
    message = str(error.value)
    assert message.startswith(
        "http://127.0.0.1:9/UniversalDependencies/UD_English-EWT/archive/15d613d.tar.gz could not be"
    )
    assert message.endswith(f"check the network, or put UD_English-EWT-15d613d.tar.gz into {tmp_path} yourself")


def test_an_archive_with_a_known_checksum_must_have_it(tmp_path: Path) -> None:
    ((name, digest),) = TREEBANK.known.items()
    (tmp_path / name).write_bytes(b"other")
    with pytest.raises(BadCorpus) as error:
        find_archives(tmp_path)
    assert str(error.value) == f"{tmp_path / name}:0: the checksum is not {digest}; delete the file and fetch it again"
