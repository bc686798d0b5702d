"""A server in this process, on a free port of the loopback address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from time import monotonic
from typing import Any

import httpx

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.server.app import Server, ServerOptions, application, bind, server
from specmatrix.engine.server.engine_thread import EngineThread, Submission, Ticket
from tests.support.engines import CHECKPOINTS

MODEL = "llama-mini"
QUESTION = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"
SECONDS = 60.0
# The zoo's prompt as a chat template, with a loop and the functions that real templates call.
TEMPLATE = (
    "{%- for m in messages %}{%- if m.role not in ('user', 'system') %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "{{- bos_token + 'Question: ' + m.content + '\n' }}{%- endfor %}{%- if add_generation_prompt %}Answer:{%- endif %}"
)


@dataclass
class RunningServer:
    """A running server. ended: its requests, as they end."""

    url: str
    llm: LLM
    engine: EngineThread
    server: Server
    client: httpx.Client
    ended: Queue[Ticket]
    thread: Thread
    loop: asyncio.AbstractEventLoop
    journal: list[Entry]

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - as the coroutine
        """The result of a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(SECONDS)

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def generate(self, **body: object) -> dict[str, Any]:
        """The answer of /generate."""
        response = self.post("/generate", **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def llm_outputs(self, prompt: str, params: SamplingParams) -> list[Output]:
        """What the engine itself answers."""
        asked = [Submission(prompt, params)]

        async def outputs() -> list[Output]:
            return [await ticket.done() for ticket in await self.engine.submit(asked)]

        found: list[Output] = self.call(outputs)
        return found

    def held(self) -> int:
        """KV pages of requests and sessions."""
        return int(self.call(self.engine.state)["pages"]["held"])

    def connected(self, sent: str) -> socket.socket:
        """A connection over which this was sent, for a client that behaves in its own way."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=SECONDS)
        connection.sendall(sent.encode())
        return connection

    def raw(self, path: str, body: str) -> socket.socket:
        """A connection over which a request was sent."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        return self.connected(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n{body}")

    def stop(self) -> None:
        """Drain, and wait for the end."""
        self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


def until(true: Callable[[], object]) -> None:
    """Wait for the server."""
    end = monotonic() + SECONDS
    while not true():
        assert monotonic() < end


def templated(parent: Path, template: str = TEMPLATE) -> Path:
    """The smallest target with a chat template, in a folder of its name."""
    folder = parent / MODEL
    folder.mkdir()
    for file in (CHECKPOINTS / MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@contextmanager
def served(
    options: ServerOptions | None = None, folder: Path = CHECKPOINTS / MODEL, **config: object
) -> Iterator[RunningServer]:
    """A server with EAGLE3 over the smallest target and few pages, until the block ends."""
    chosen = options or ServerOptions(port=0, model=MODEL)
    shape: dict[str, Any] = {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(CHECKPOINTS / "llama-mini-eagle3"),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "page_size": 4,
        "max_total_tokens": 8192,
        "max_running_requests": 4,
        "strict_memory": 1,
        "enable_streaming_session": True,
    }
    llm = LLM(EngineConfig(str(folder), **{**shape, **config}))
    journal: list[Entry] = []
    llm.subscribe_journal(journal.append)
    listening = bind(chosen)
    app, engine = application(llm, folder, chosen)
    running, ended = server(app, engine, chosen), Queue[Ticket]()
    count = engine.on_end
    engine.on_end = lambda ticket: (count(ticket), ended.put(ticket))  # type: ignore[assignment, func-returns-value]
    ready, loops = Event(), list[asyncio.AbstractEventLoop]()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()
        await running.serve(sockets=[listening])

    thread = Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    url = "http://{}:{}".format(*listening.getsockname()[:2])
    key = {"Authorization": f"Bearer {chosen.key}"} if chosen.key else {}
    with httpx.Client(base_url=url, timeout=SECONDS, headers=key, trust_env=False) as client:
        one = RunningServer(url, llm, engine, running, client, ended, thread, loops[0], journal)
        client.get("/health")  # the connection waits until the server has started
        try:
            yield one
        finally:
            if thread.is_alive():
                one.stop()
