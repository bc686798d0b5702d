"""Responses that abort their engine requests when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from specmatrix.engine.api import Output
from specmatrix.engine.server.engine_thread import EngineThread, Ticket
from specmatrix.engine.server.limits import Refused

DONE: Final = b"data: [DONE]\n\n"
# Stands for a log-probability of -inf, which JSON cannot represent, as in OpenAI's API.
MIN_LOGPROB: Final = -9999.0
_BUILDER: Final = ThreadPoolExecutor(1, thread_name_prefix="answers")
T = TypeVar("T")


async def finished(http: Request, engine: EngineThread, tickets: Sequence[Ticket]) -> list[Output]:
    """Wait for the outputs of requests. If the client disconnects first, abort them and raise Refused (499)."""
    try:
        return await unless_gone(http, asyncio.gather(*(ticket.done() for ticket in tickets)))
    finally:
        engine.abort(tickets)


async def unless_gone(http: Request, work: Awaitable[T]) -> T:
    """Wait for a result. If the client disconnects first, cancel the work and raise Refused (499)."""
    gone, result = asyncio.ensure_future(_disconnect(http)), asyncio.ensure_future(work)
    try:
        await asyncio.wait((gone, result), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise Refused(499, "the client left before its answer was complete")
        return result.result()
    finally:
        gone.cancel()
        result.cancel()
        await asyncio.gather(gone, result, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


# OpenAPI description of what an EventStream sends.
STREAMED: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/event-stream": {}}}}


class EventStream(StreamingResponse):
    """Server-sent events of requests; when the response ends for any reason, requests that still run are aborted."""

    def __init__(self, engine: EngineThread, tickets: Sequence[Ticket], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._engine, self._tickets = engine, tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._engine.abort(self._tickets)


def event(data: Mapping[str, Any]) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def built(make: Callable[[], T]) -> T:
    """Call `make` in the single thread that builds answers.

    An answer may hold half a million numbers; several at once would delay the event loop.
    """
    return await asyncio.get_running_loop().run_in_executor(_BUILDER, make)


async def json_answer(content: Callable[[], object]) -> Response:
    """A JSON response with the value that `content` returns."""
    return Response(await built(lambda: msgspec.json.encode(content())), media_type="application/json")


async def merged(tickets: Sequence[Ticket]) -> AsyncIterator[int]:
    """Yield a ticket's index whenever it has new output, and at least once after its end."""
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
    """Clamp a log-probability to a number that JSON can represent."""
    return None if value is None else max(value, MIN_LOGPROB)
