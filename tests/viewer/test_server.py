"""The page as it is served: one descent at a time, bounds on what comes in, nothing given out that is not its own."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the viewer's extra is not installed")
import httpx

from spen.tasks.denoising.tab import DenoisingTab
from spen.tasks.srl.tab import RolesTab
from spen.viewer import server
from spen.viewer.catalogue import Catalogue
from spen.viewer.page import build
from spen.viewer.server import make_app, open_socket
from tests.viewer.serving import answers, button, new_client, press, served
from tests.viewer.worlds import fake_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    fake_run(folder / "runs" / "one", entries=2)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with (
        server.staying_inside(home / "temporary") as uploads,
        served(make_app(Catalogue([home / "runs"]), uploads)) as found,
    ):
        yield found


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with new_client() as made:
        yield made


def test_the_page_is_there_with_headers_that_keep_it_to_itself(address: str, client: httpx.Client) -> None:
    page = client.get(address)
    assert page.status_code == 200
    assert '<meta property="og:title" content="spen" />' in page.text
    policy = page.headers["content-security-policy"]
    assert "connect-src 'self'" in policy
    assert "http" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    outside = [
        url
        for url in re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?://[^"]+)"', page.text)
        if not url.startswith(address)
    ]
    assert outside == []


def test_other_names_for_this_machine_are_refused(address: str, client: httpx.Client) -> None:
    assert client.get(address, headers={"host": "attacker.example"}).status_code == 400
    assert client.get(address, headers={"host": "localhost:1"}).status_code == 200


def test_files_of_the_machine_are_not_given_out(address: str, client: httpx.Client, home: Path) -> None:
    secret = home / "secret.txt"
    secret.write_text("hunter2")
    inside = home / "runs" / "one" / "run.json"
    for path in (secret, inside, Path("/etc/passwd"), Path(server.__file__)):
        answer = client.get(f"{address}/gradio_api/file={path}")
        assert answer.status_code in (403, 404), path
        assert path.read_text()[:40] not in answer.text


def test_a_forged_path_is_not_read(address: str, client: httpx.Client, home: Path) -> None:
    """The page sends the path of an upload; a visitor may send any other."""
    secret = home / "forged.png"
    secret.write_text("secret")
    data = [-1, {"path": str(secret), "meta": {"_type": "gradio.FileData"}}, None, "none", 0, "reading", "–"]
    assert press(client, address, button(address, "denoise"), data).status_code == 200
    (answer,) = answers(client, address, 1)
    assert answer["success"] is False
    assert "secret" not in str(answer["output"])


def test_large_uploads_are_refused(address: str, client: httpx.Client) -> None:
    small = client.post(f"{address}/gradio_api/upload", files={"files": ("a.png", b"x" * 1000)})
    assert small.status_code == 200
    large = client.post(f"{address}/gradio_api/upload", files={"files": ("a.png", b"x" * 17_000_000)})
    assert large.status_code == 413


def test_uploads_lie_in_the_temporary_folder(address: str, client: httpx.Client, home: Path) -> None:
    (path,) = client.post(f"{address}/gradio_api/upload", files={"files": ("../../up.png", b"x")}).json()
    assert Path(path).resolve().is_relative_to((home / "temporary").resolve())


def test_one_descent_at_a_time_and_a_bounded_queue(
    address: str, client: httpx.Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def slow(*_: Any) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return "done"

    monkeypatch.setattr(RolesTab, "label", slow)
    monkeypatch.setattr(DenoisingTab, "denoise", slow)
    with served(make_app(Catalogue([home / "runs"]), home)) as busy:
        label, denoise = button(busy, "label"), button(busy, "denoise")
        image, words = [0, None, None, "none", 0, "tv", "–"], ["srl-grammar", "", "ad3"]
        asked = [press(client, busy, *(pair)) for _ in range(25) for pair in ((label, words), (denoise, image))]
        taken = [r for r in asked if r.status_code == 200]
        refused = {(r.status_code, r.json()["detail"]) for r in asked if r.status_code != 200}
        assert len(asked) == 50
        assert len(taken) >= 40
        assert refused <= {(503, "Queue is full. Max size is 40 and size is 40.")}
        results = answers(client, busy, len(taken))
        assert {r["output"]["data"][0] for r in results} == {"done"}
        assert most == 1
        assert client.get(busy).status_code == 200


def test_the_curves_do_not_wait_for_a_descent(home: Path) -> None:
    page = build(Catalogue([home / "runs"]), home)
    kinds = [(fn.name, fn.concurrency_id, fn.concurrency_limit) for fn in page.fns.values()]
    heavy = [name for name, *kind in kinds if kind == ["descent", 1]]
    assert sorted(heavy) == ["denoise", "label", "show_landscape", "show_landscape", "show_landscape", "solve"]
    assert all(kind != "descent" for name, kind, _ in kinds if name not in heavy)
    assert all(fn.api_visibility == "private" for fn in page.fns.values())


def test_sockets_that_cannot_be_opened_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} is in use; choose another with --port, or 0 for any"):
            open_socket("127.0.0.1", port)
    with pytest.raises(ValueError, match="a port is a number from 0 \\(any that is free\\) to 65535, not 70000"):
        open_socket("127.0.0.1", 70000)
    with pytest.raises(ValueError, match="'no.such.host.invalid' is no address of this machine; --host takes"):
        open_socket("no.such.host.invalid", 0)
    with pytest.raises(ValueError, match=r"cannot listen on 192\.0\.2\.1:0 \(.*\); choose another --host or --port"):
        open_socket("192.0.2.1", 0)


def test_addresses_can_be_opened_in_a_browser() -> None:
    assert server._address("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert server._address("::1", 80) == "http://[::1]:80"
    assert server._address("localhost", 81) == "http://localhost:81"
