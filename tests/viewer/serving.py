"""Talk to a page that is served: start it, send what its buttons send, read the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from spen.viewer.server import open_socket


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an app that runs in a thread."""
    with open_socket("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


def new_client() -> httpx.Client:
    """A client that opens a connection for each request.

    A server closes an idle connection when it likes; a request that is under way on it at that moment is reset.
    """
    return httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


def button(address: str, name: str) -> int:
    """The number of the function behind a button, as the page itself reads it."""
    config = httpx.get(f"{address}/config").json()
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
    return next(d["id"] for d in config["dependencies"] if [ids[name], "click"] in d["targets"])


def press(client: httpx.Client, address: str, number: int, data: list[Any], session: str = "s") -> httpx.Response:
    """What the page sends when a button is pressed."""
    payload = {"fn_index": number, "data": data, "session_hash": session, "trigger_id": None, "event_data": None}
    return client.post(f"{address}/gradio_api/queue/join", json=payload)


def answers(client: httpx.Client, address: str, count: int, session: str = "s") -> list[dict[str, Any]]:
    """Wait for as many answers as were asked for."""
    found: list[dict[str, Any]] = []
    with client.stream("GET", f"{address}/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line.removeprefix("data:"))
                if message["msg"] == "process_completed":
                    found.append(message)
                    if len(found) == count:
                        break
    return found
