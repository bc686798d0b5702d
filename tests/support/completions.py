"""A server of OpenAI's completions that answers what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

# From a request's body to the status and the body of the response.
Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


def completion(text: str, finish: str = "stop") -> tuple[int, dict[str, Any]]:
    """A response with one choice."""
    usage = {"completion_tokens": len(text.split())}
    return 200, {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}


@contextmanager
def completions(
    reply: Reply, model: str = "m", info: dict[str, Any] | None = None, drafts: tuple[int, int] | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The server's URL and the bodies that it got.

    info: of /server_info. drafts: drafted and accepted tokens for each request, as `specmatrix serve` counts them.
    """
    bodies: list[dict[str, Any]] = []
    lock = Lock()

    class CompletionsHandler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, data: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.answer(200, json.dumps({"data": [{"id": model}] if model else []}).encode())
            elif self.path == "/server_info" and info is not None:
                self.answer(200, json.dumps(info).encode())
            elif self.path == "/metrics" and drafts is not None:
                names = zip(("spec.drafted", "spec.accepted"), drafts, strict=True)
                lines = [f'specmatrix:engine_events_total{{event="{n}"}} {k * len(bodies)}.0' for n, k in names]
                self.answer(200, ("\n".join(lines) + "\n").encode(), "text/plain")
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                bodies.append(body)
            status, said = reply(body)
            self.answer(status, json.dumps(said).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), CompletionsHandler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
