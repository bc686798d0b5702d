"""Responses that end their requests in the engine when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from specmatrix.engine.api import Output
from specmatrix.engine.server.engine_thread import EngineThread, Ticket
from specmatrix.engine.server.refusals import Disconnected

DONE: Final = b"data: [DONE]\n\n"
# JSON has no infinity; clients of OpenAI's API know this number as the log-probability of what cannot be.
LEAST: Final = -9999.0
_BUILDER: Final = ThreadPoolExecutor(1, thread_name_prefix="answers")
T = TypeVar("T")


async def finished(http: Request, engine: EngineThread, tickets: Sequence[Ticket]) -> list[Output]:
    """The outputs of requests; Disconnected, after aborting them, if the client leaves first."""
    gone = asyncio.ensure_future(_disconnect(http))
    outputs = asyncio.gather(*(ticket.done() for ticket in tickets))
    try:
        await asyncio.wait((gone, outputs), return_when=asyncio.FIRST_COMPLETED)
        if not outputs.done():
            raise Disconnected("the client left before its answer was complete")
        return outputs.result()
    finally:
        engine.abort(tickets)
        gone.cancel()
        outputs.cancel()
        await asyncio.gather(gone, outputs, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events about requests, which are aborted if they still run when the response ends for any reason."""

    def __init__(self, engine: EngineThread, tickets: Sequence[Ticket], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._engine, self._tickets = engine, tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._engine.abort(self._tickets)


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def built(make: Callable[[], T]) -> T:
    """What `make` returns, of the one thread that builds answers: each may have half a million numbers, and several at
    once would keep the event loop waiting."""
    return await asyncio.get_running_loop().run_in_executor(_BUILDER, make)


async def json_answer(content: Callable[[], object]) -> Response:
    """A response with what `content` returns."""
    return Response(await built(lambda: msgspec.json.encode(content())), media_type="application/json")


async def merged(tickets: Sequence[Ticket]) -> AsyncIterator[int]:
    """The index of a ticket, whenever one has moved; each at least once after its end."""
    waiting = {asyncio.ensure_future(ticket.moved()): index for index, ticket in enumerate(tickets)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                if tickets[index].output is None:
                    waiting[asyncio.ensure_future(tickets[index].moved())] = index
                yield index
    finally:
        for task in waiting:
            task.cancel()


def number(value: float | None) -> float | None:
    """A log-probability as JSON has it."""
    return None if value is None else max(value, LEAST)
