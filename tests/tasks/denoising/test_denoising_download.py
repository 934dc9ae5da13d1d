"""Against a server on loopback: interrupted downloads go on, and what comes is verified."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spen.tasks.denoising.sevenscenes.download import LOCK, DownloadError, fetch, fetch_sevenscenes, unpack

BODY = bytes(range(256)) * 8000


class Server(ThreadingHTTPServer):
    """Serves `body` at any path but /none; cuts an answer off after `limit` bytes; remembers what was asked."""

    body, limit, etag, ranges, announce = BODY, None, '"one"', True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, want = self.server, self.headers.get("Range")
        server.asked.append(want)
        if self.path == "/none":
            return self.send_error(404)
        start = 0
        if want and server.ranges and self.headers.get("If-Range") == server.etag:
            start = int(want.removeprefix("bytes=").rstrip("-"))
            if start >= len(server.body):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        rest = server.body[start:]
        if server.announce:
            self.send_header("Content-Length", str(len(rest)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        piece = rest[: server.limit] if server.limit is not None else rest
        server.sent += len(piece)
        self.wfile.write(piece)
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server: Server, path: Path) -> Path:
    return fetch(f"{server.url}/file", path, show_progress=False)


def test_a_download_is_recorded(server: Server, tmp_path: Path) -> None:
    path = get(server, tmp_path / "new" / "file.bin")
    assert path.read_bytes() == BODY
    entry = json.loads((tmp_path / "new" / LOCK).read_text())["file.bin"]
    assert entry == {"url": f"{server.url}/file", "bytes": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest()}
    assert sorted(p.name for p in path.parent.iterdir()) == ["file.bin", LOCK]
    get(server, path)
    assert len(server.asked) == 1  # a verified file is not asked for again


def test_an_interrupted_download_goes_on(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    server.limit = 700_000
    for have in (700_000, 1_400_000):
        with pytest.raises(DownloadError) as caught:
            get(server, path)
        assert str(caught.value) == (
            f"{server.url}/file stopped after {have} of {len(BODY)} bytes; run the same command again to go on"
        )
        assert not path.exists()
    server.limit = None
    assert get(server, path).read_bytes() == BODY
    assert server.asked == [None, "bytes=700000-", "bytes=1400000-"]
    assert server.sent == len(BODY)  # no byte came twice


@pytest.mark.parametrize("change", ["etag", "ranges", "no etag"])
def test_where_going_on_is_not_possible_it_starts_again(server: Server, tmp_path: Path, change: str) -> None:
    path = tmp_path / "file.bin"
    server.limit = 1000
    if change == "no etag":
        server.etag = None
    with pytest.raises(DownloadError):
        get(server, path)
    server.limit = None
    if change == "etag":
        server.etag, server.body = '"two"', BODY[::-1]
    elif change == "ranges":
        server.ranges = False
    assert get(server, path).read_bytes() == server.body


def test_a_part_that_is_already_whole(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.with_name("file.bin.part").write_bytes(BODY)
    path.with_name("file.bin.part.json").write_text(json.dumps({"version": server.etag}))
    assert get(server, path).read_bytes() == BODY


def test_without_an_announced_length(server: Server, tmp_path: Path) -> None:
    server.announce = False
    assert get(server, tmp_path / "file.bin").read_bytes() == BODY


def test_a_changed_file_is_refused(server: Server, tmp_path: Path) -> None:
    path = get(server, tmp_path / "file.bin")
    path.unlink()
    server.body = BODY[:-1] + b"x"
    with pytest.raises(DownloadError) as caught:
        get(server, path)
    old, new = hashlib.sha256(BODY).hexdigest()[:12], hashlib.sha256(server.body).hexdigest()[:12]
    assert str(caught.value) == (
        f"{path}: has {len(BODY)} bytes and sha256 {new}…, but {LOCK} records {len(BODY)} bytes and {old}…; "
        "delete the file to fetch it again, or its entry to accept a new version"
    )
    assert [p.name for p in tmp_path.iterdir()] == [LOCK]


def test_a_damaged_file_is_noticed(server: Server, tmp_path: Path) -> None:
    path = get(server, tmp_path / "file.bin")
    path.write_bytes(BODY[:100])
    with pytest.raises(DownloadError, match="has 100 bytes and sha256"):
        get(server, path)


def test_errors_of_the_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"/none answered 404 \(Not Found\); check the address"):
        fetch(f"{server.url}/none", tmp_path / "a", show_progress=False)
    with pytest.raises(DownloadError, match=r"could not be read .*; run the same command again to go on"):
        fetch("http://127.0.0.1:9/a", tmp_path / "a", show_progress=False)


def test_a_spoilt_lock_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("not json")
    with pytest.raises(DownloadError, match=r"is not the JSON that was written there; delete it and fetch again"):
        get(server, tmp_path / "file.bin")


def test_progress_is_shown_only_where_wanted(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    get(server, tmp_path / "quiet.bin")
    assert capsys.readouterr().out == ""
    fetch(f"{server.url}/file", tmp_path / "loud.bin", show_progress=True)
    assert "loud.bin" in capsys.readouterr().out


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_scene_is_unpacked_with_its_sequences(server: Server, tmp_path: Path) -> None:
    inner = zipped({"seq-01/frame-000000.depth.png": b"depth"})
    server.body = zipped({"heads/seq-01.zip": inner, "heads/TrainSplit.txt": b"sequence1\n"})
    scene = fetch_sevenscenes("heads", tmp_path, base=server.url, show_progress=False)
    assert scene == tmp_path / "heads"
    assert (scene / "seq-01" / "frame-000000.depth.png").read_bytes() == b"depth"
    assert not (scene / "seq-01.zip").exists()
    assert not (tmp_path / "heads.zip").exists()
    fetch_sevenscenes("heads", tmp_path, base=server.url, show_progress=False)
    assert len(server.asked) == 1


def test_wrong_scenes_and_archives(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scene is 'kitchen' but 7-Scenes has chess, fire, heads, office"):
        fetch_sevenscenes("kitchen", tmp_path)
    server.body = zipped({"other/file": b""})
    with pytest.raises(DownloadError, match=r"fire\.zip does not hold a folder fire; delete it and fetch again"):
        fetch_sevenscenes("fire", tmp_path, base=server.url, show_progress=False)
    server.body = b"no zip"
    with pytest.raises(DownloadError, match=r"chess\.zip: is not a whole zip file; delete it and fetch again"):
        fetch_sevenscenes("chess", tmp_path, base=server.url, show_progress=False)


def test_entries_stay_within_the_folder(tmp_path: Path) -> None:
    archive = tmp_path / "evil.zip"
    archive.write_bytes(zipped({"../outside": b""}))
    with pytest.raises(DownloadError, match=r"the entry \.\./outside would be written outside of"):
        unpack(archive, tmp_path / "in")
