"""Serve the page: on loopback by default, from a temporary folder, with no requests to the internet."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

    from spen.tasks.own import OwnModel
    from spen.viewer.catalogue import Catalogue

LOOPBACK = ("127.0.0.1", "localhost", "::1")

# The page may load from this server and from itself (data:, blob:) only, so the browser refuses what a library of the
# page would fetch elsewhere.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def serve(folders: Sequence[Path], *, host: str, port: int, browser: bool, build: str = "", data: str = "") -> None:
    """Serve the page until Ctrl-C; `build` and `data` show the one folder as a model of the user's own."""
    if build and (len(folders) != 1 or not data):
        raise ValueError("--build needs one run folder, and --data FILE with an array x: the examples to descend on")
    if data and not build:
        raise ValueError("--data is for a model of your own, opened with --build")
    for folder in folders:  # the most frequent mistake, found before seconds of imports
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; name a run, or a folder with runs below it")
    with (
        open_socket(host, port) as listening,
        tempfile.TemporaryDirectory(prefix="spen-view-") as temporary,
        staying_inside(Path(temporary)) as uploads,
    ):
        try:
            import gradio  # noqa: F401
        except ImportError:
            raise ImportError("the viewer needs gradio, which is not installed; run `pip install gradio`") from None
        from spen.viewer.catalogue import Catalogue

        own = None
        if build:
            from spen.tasks.own import OwnModel

            own = OwnModel(folders[0], build, data=data)
        app = make_app(Catalogue(folders), uploads, host, own)
        address = _address(host, listening.getsockname()[1])
        print(f"spen: the page is at {address} (Ctrl-C ends it)", flush=True)
        if host not in LOOPBACK:
            print(f"spen: whoever reaches {host} can use it; it has no password", file=sys.stderr, flush=True)
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        listen(app, listening)


def listen(app: FastAPI, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    # An open page keeps a stream open; without a limit Ctrl-C would wait until its window is closed.
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        return


def make_app(catalogue: Catalogue, uploads: Path, host: str = "127.0.0.1", own: OwnModel | None = None) -> FastAPI:
    """The page with its security headers; `uploads` is the folder that `staying_inside` yields."""
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from spen.viewer.page import MAX_UPLOAD, build, style, theme

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    if host in LOOPBACK[:2]:
        # Another site may resolve its own name to 127.0.0.1 (DNS rebinding); its Host header is refused.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    app.add_middleware(_Headers)
    page = build(catalogue, uploads, own)
    # Gradio checks that a path is that of an upload only after its own `launch`, which is not called here.
    page.has_launched = True
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=host,
        theme=theme(),
        css=style(),
        footer_links=[],
        show_error=False,
        max_file_size=MAX_UPLOAD,
        ssr_mode=False,
        pwa=False,
        run_history=False,
        mcp_server=False,
    )


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError if there can be none."""
    if not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 0 (any that is free) to 65535, not {port}")
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(place[0]), port), family=family)
    except socket.gaierror:
        raise ValueError(f"{host!r} is no address of this machine; --host takes 127.0.0.1, 0.0.0.0 or a name") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; choose another with --port, or 0 for any") from None
        why = os.strerror(error.errno or 0)
        raise ValueError(f"cannot listen on {host}:{port} ({why}); choose another --host or --port") from None


class _Headers:
    """Adds headers to every response without buffering streams."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.lower() not in dict(_HEADERS)]
                message = {**message, "headers": [*kept, *_HEADERS]}
            await send(message)

        await self.app(scope, receive, sent if scope["type"] == "http" else send)


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


@contextmanager
def staying_inside(folder: Path) -> Iterator[Path]:
    """Caches of libraries go into the folder, and telemetry is off; yields the folder of uploads."""
    settings = {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": str(folder / "uploads"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(folder / "hub"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield folder / "uploads"
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
