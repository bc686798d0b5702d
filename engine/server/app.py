"""The application, and the process that serves it until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import Final

import uvicorn

from specmatrix.engine.api import LLM
from specmatrix.engine.server.chat_template import ChatTemplate
from specmatrix.engine.server.connections import Connection, max_connections
from specmatrix.engine.server.engine_thread import EngineThread
from specmatrix.engine.server.json_body import Application
from specmatrix.engine.server.limits import Limits
from specmatrix.engine.server.metrics import ServerMetrics, metrics_router
from specmatrix.engine.server.native import NATIVE_BODIES, native_router
from specmatrix.engine.server.openai_bodies import OPENAI_BODIES
from specmatrix.engine.server.openai_routes import openai_router
from specmatrix.engine.server.refusals import install
from specmatrix.errors import ConfigError, shown

MEBIBYTE: Final = 2**20
# Time that clients get to read their responses after the drain timeout.
READ_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Address and limits of a server.

    port: 0 selects a free one. key: API key that clients must send, None for none. model: the served model name.
    max_queued_requests: in addition to the running ones. max_connections: concurrent HTTP requests. drain_seconds:
    how long requests may run after a signal before they are aborted.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    key: str | None = None
    model: str | None = None
    max_queued_requests: int = 128
    max_connections: int = 512
    max_body_bytes: int = 4 * MEBIBYTE
    drain_seconds: float = 60.0

    def check(self) -> None:
        """Raise ConfigError on a value outside its range."""
        for name, value, least, most in (
            ("port", self.port, 0, 65535),
            ("max-queued-requests", self.max_queued_requests, 0, 10**6),
            ("max-connections", self.max_connections, 1, 10**6),
            ("max-body-bytes", self.max_body_bytes, 1, 2**40),
            ("drain-seconds", self.drain_seconds, 0, 10**6),
        ):
            if not least <= value <= most:
                raise ConfigError(f"--{name} is {shown(value)}; allowed: {least} to {most}")
        if self.key == "":
            raise ConfigError("--api-key is empty; give a key, or leave the option out")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise ConfigError("--api-key has characters that a header cannot hold; allowed: printable ASCII, no blanks")


def application(llm: LLM, folder: Path, options: ServerOptions) -> tuple[Application, EngineThread]:
    """Create the application for a loaded engine, and its engine thread, which `Server` starts and stops."""
    model = options.model or llm.resolved.model_path
    engine = EngineThread(llm, options.max_queued_requests)
    template = ChatTemplate(folder)
    app = Application((*NATIVE_BODIES, *OPENAI_BODIES), template.close)
    install(app)
    app.include_router(native_router(engine, llm.resolved.model_path))
    app.include_router(openai_router(engine, model, template))
    app.include_router(metrics_router(ServerMetrics(engine, model)))
    app.add_middleware(
        Limits,
        key=options.key,
        host=options.host,
        max_bytes=options.max_body_bytes,
        max_requests=options.max_connections,
    )
    return app, engine


class Server(uvicorn.Server):
    """A server that drains at the first SIGINT or SIGTERM and stops at once at the second.

    While it drains it accepts no requests; it ends once every response is sent. drain_seconds: when requests that still
    run are aborted. force: the number of the second signal. cut_off: number of aborted requests.
    """

    def __init__(self, config: uvicorn.Config, app: Application, engine: EngineThread, drain_seconds: float) -> None:
        super().__init__(config)
        self._app, self._engine, self._drain_seconds = app, engine, drain_seconds
        self.force: int | None = None
        self.cut_off = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`, then end the engine thread and close the application."""
        self._engine.start()
        try:
            await super().serve(sockets)
        finally:
            await self._engine.stop(waits=self.force is None)
            self._app.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until every response is sent or the drain timeout has passed."""
        async with asyncio.TaskGroup() as group:
            limit = group.create_task(self._limit_drain())
            await super().shutdown(sockets)
            limit.cancel()

    async def _limit_drain(self) -> None:
        """Abort running requests, which ends each client's response, then close unread streams."""
        await asyncio.sleep(self._drain_seconds)
        self.cut_off = await self._engine.abort_all()
        await asyncio.sleep(READ_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if current_thread() is not main_thread():  # only the main thread receives signals
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            loop.add_signal_handler(number, self.stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Start draining; a second call stops at once."""
        if self.should_exit:
            self.force_exit, self.force = True, number
            return
        self.should_exit = self._engine.stopping = True
        load = self._engine.load
        text = f"draining {load} request{'s' * (load != 1)}; a second signal stops at once"
        print(text, file=sys.stderr, flush=True)


def bind(options: ServerOptions) -> socket.socket:
    """Open a listening socket. ConfigError if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        bound = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen on {shown(options.host)}, port {options.port}: {why}") from None
    bound.setblocking(False)
    return bound


def server(app: Application, engine: EngineThread, options: ServerOptions) -> Server:
    """Create a server without starting it."""
    config = uvicorn.Config(
        app,
        http=Connection,  # h11; httptools does not limit the number of headers
        ws="none",
        limit_concurrency=max_connections(options.max_connections),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
    )
    return Server(config, app, engine, options.drain_seconds)
