"""`spen view`: where it listens, what it says, and every mistake in one line."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from spen.cli import main
from spen.viewer import server
from tests.viewer.worlds import fake_run


def view(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spen", "view", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Instead of serving, note what would be served and where."""
    pytest.importorskip("gradio", reason="the viewer's extra is not installed")
    noted: dict[str, Any] = {}

    def note(app: Any, listening: socket.socket) -> None:
        noted.update(place=listening.getsockname(), environment=dict(os.environ))

    monkeypatch.setattr(server, "listen", note)
    return noted


def test_it_listens_on_loopback_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listening: dict[str, Any]
) -> None:
    assert view(monkeypatch, "--port", "0", "--no-browser") == 0
    host, port = listening["place"]
    assert host == "127.0.0.1"
    said = capsys.readouterr()
    assert said.out == f"spen: the page is at http://127.0.0.1:{port} (Ctrl-C ends it)\n"
    assert said.err == ""


def test_it_works_in_a_temporary_folder_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listening: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "mine")
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    assert view(monkeypatch, "--port", "0", "--no-browser") == 0
    meanwhile = listening["environment"]
    assert meanwhile["GRADIO_ANALYTICS_ENABLED"] == "False"
    for name in ("GRADIO_TEMP_DIR", "HF_HOME", "MPLCONFIGDIR"):
        folder = Path(meanwhile[name]).parent
        assert folder.is_relative_to(tempfile.gettempdir())
        assert not folder.exists()
    assert list(tmp_path.iterdir()) == []
    assert os.environ["HF_HOME"] == "mine"
    assert "GRADIO_TEMP_DIR" not in os.environ


def test_another_host_is_a_choice_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listening: dict[str, Any]
) -> None:
    assert view(monkeypatch, "--host", "0.0.0.0", "--port", "0", "--no-browser") == 0
    assert listening["place"][0] == "0.0.0.0"
    assert capsys.readouterr().err == "spen: whoever reaches 0.0.0.0 can use it; it has no password\n"


def test_the_browser_is_opened_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, listening: dict[str, Any]
) -> None:
    opened = threading.Event()
    monkeypatch.setattr(server.webbrowser, "open", lambda address: opened.set())
    assert view(monkeypatch, "--port", "0", "--no-browser") == 0
    assert not opened.wait(0.6)
    assert view(monkeypatch, "--port", "0") == 0
    assert opened.wait(3)


def test_runs_named_on_the_command_line_are_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listening: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    fake_run(tmp_path / "runs" / "one")
    fake_run(tmp_path / "two")
    seen: list[list[str]] = []
    real = server.make_app
    monkeypatch.setattr(server, "make_app", lambda c, *rest: (seen.append(c.runs()), real(c, *rest))[1])
    assert view(monkeypatch, "runs", "two", "--port", "0", "--no-browser") == 0
    assert {frozenset(runs) for runs in seen} == {frozenset({"runs/one", "two"})}


def test_mistakes_end_in_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, line in (
            (["nowhere"], "spen: nowhere is not a folder; name a run, or a folder with runs below it"),
            (["empty"], "spen: empty holds no run: there is no run.json in it or below it"),
            (["--port", port], f"spen: port {port} is in use; choose another with --port, or 0 for any"),
            (["--port", "99999"], "spen: a port is a number from 0 (any that is free) to 65535, not 99999"),
            (
                ["--host", "no.such.host.invalid"],
                "spen: 'no.such.host.invalid' is no address of this machine; --host takes 127.0.0.1, 0.0.0.0 or a name",
            ),
        ):
            extra = [] if "--port" in arguments else ["--port", "0"]
            assert view(monkeypatch, *arguments, *extra, "--no-browser") == 2
            assert capsys.readouterr().err == f"{line}\n"


def test_without_gradio_the_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert view(monkeypatch, "--port", "0", "--no-browser") == 2
    assert capsys.readouterr().err == (
        "spen: the viewer needs gradio, which is not installed; run `pip install gradio`\n"
    )
