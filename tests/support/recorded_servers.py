"""Servers of other engines as recorded traffic: `python -m tests.support.recorded_servers FILE URL PORT` is a proxy
that writes what a server answers, and `replayed(FILE)` answers so again.

A line is a request and its answer. The name that a run gives to its requests is left out of both.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import httpx

RUN = re.compile(r"\b[0-9a-f]{8}(?=-[\w.]+;)")
ANY = "00000000"
# Of vLLM's metrics, those that say whether it speculates.
KEPT = ("vllm:num_requests_running", "vllm:spec_decode_num")


Answer = Callable[[str, str, str], tuple[int, str, Iterable[str]]]


class Answering(BaseHTTPRequestHandler):
    """Answers each request by `answer(method, path, body)`: a status, a content type and pieces of text."""

    server: Any

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        status, kind, pieces = self.server.answer(self.command, self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        for piece in pieces:  # the end of the connection ends them
            self.wfile.write(piece.encode())
            self.wfile.flush()

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


class Serving(ThreadingHTTPServer):
    """A server of many requests at one time."""

    request_queue_size = 128

    def __init__(self, port: int, answer: Answer) -> None:
        super().__init__(("127.0.0.1", port), Answering)
        self.answer = answer


class Replay:
    """The recorded answers, by request; the last answer to a request is given again."""

    def __init__(self, file: Path) -> None:
        self.answers: dict[tuple[str, str, str], deque[tuple[int, str, str]]] = {}
        self.lock, self.unknown = Lock(), list[str]()
        for line in file.read_text(encoding="utf-8").splitlines():
            method, path, body, *answer = json.loads(line)
            self.answers.setdefault((method, path, body), deque()).append(tuple(answer))

    def __call__(self, method: str, path: str, body: str) -> tuple[int, str, Iterable[str]]:
        run = RUN.search(body)
        with self.lock:
            known = self.answers.get((method, path, RUN.sub(ANY, body)))
            if known is None:
                self.unknown.append(f"{method} {path} {body[:200]}")
                return 404, "text/plain", ["not recorded"]
            status, kind, text = known.popleft() if len(known) > 1 else known[0]
        return status, kind, [text.replace(ANY, run[0]) if run else text]


@contextmanager
def replayed(file: Path) -> Iterator[str]:
    """The URL of a server that answers as recorded. AssertionError at the end if it was asked for anything else."""
    replay = Replay(file)
    with Serving(0, replay) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield "http://{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
    assert not replay.unknown, replay.unknown


def record(file: Path, url: str, port: int) -> None:
    """A proxy of the server at `url` that appends its traffic to a file, until it is interrupted."""
    lock = Lock()

    def answer(method: str, path: str, body: str) -> tuple[int, str, Iterable[str]]:
        stack = ExitStack()
        headers = {"Content-Type": "application/json"}
        streamed = httpx.stream(method, url + path, content=body, headers=headers, timeout=600, trust_env=False)
        found = stack.enter_context(streamed)
        kind = found.headers.get("Content-Type", "text/plain")

        def pieces() -> Iterator[str]:
            with stack:
                text = []
                for piece in found.iter_text():
                    text.append(piece)
                    yield piece
            whole = "".join(text)
            if path == "/metrics":
                whole = "".join(f"{line}\n" for line in whole.splitlines() if line.startswith(KEPT))
            line = [method, path, RUN.sub(ANY, body), found.status_code, kind, RUN.sub(ANY, whole)]
            with lock, file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

        return found.status_code, kind, pieces()

    with Serving(port, answer) as server:
        server.serve_forever()


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
