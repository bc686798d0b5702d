"""Checks that run before every route, and the limits of requests and connections (docs/engine.md, "Limits").

Errors with their HTTP status, and error bodies: OpenAI's format under /v1, SGLang's elsewhere.

Decodes request bodies directly into types with bounded sizes, up to the first error, within milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specmatrix import __version__
from specmatrix.errors import MAX_VALUE, EngineError, RequestError, shown, text_of

# Largest body, in bytes, in which an invalid value is looked up; for longer ones the error names only its path.
SEARCHED: Final = 65536
LISTED: Final = "what the OpenAPI description at /openapi.json lists"
# msgspec's message, "Expected `int`, got `str` - at `$.rid[0]`", and this project's words for its types.
MESSAGE: Final = re.compile(r"(.*?)(?: - at (`key` in )?`\$\.?(.*)`)?", re.DOTALL)
WORDS: Final = {"str": "a string", "int": "an integer", "float": "a number", "array": "a list", "object": "an object"}
REFERENCE: Final = "#/components/schemas/{name}"
Body = TypeVar("Body", bound=msgspec.Struct)


class JsonBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object; unknown members, and values not exactly of the declared types, are rejected."""


def absent() -> Any:  # noqa: ANN401 - a member of any type
    """Declare a member for a feature that this engine lacks: its JSON text is kept undecoded."""
    return msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


async def read(http: Request, kind: type[Body]) -> Body:
    """Read and decode the body of a request. RequestError unless it is JSON of this type."""
    content = http.headers.get("content-type", "application/json")
    if "json" not in content:
        raise RequestError(f"Content-Type is {shown(content)}; allowed: application/json")
    return decoded(await http.body(), kind)


def decoded(raw: bytes | msgspec.Raw, kind: type[Body], within: str = "") -> Body:
    """Decode a JSON text. RequestError unless it is of this type. within: name of the member that holds it."""
    collects = gc.isenabled()
    gc.disable()  # decoding a million lists would trigger many collections
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(_sentence(str(error), raw, within)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {text_of(error)}") from None
    except RecursionError:
        raise RequestError("the body has too many lists and objects within each other") from None
    finally:
        if collects:
            gc.enable()


def _sentence(message: str, raw: bytes | msgspec.Raw, within: str) -> str:
    """Rewrite a msgspec message in this project's error format."""
    found = MESSAGE.fullmatch(message)
    assert found is not None
    what, key = found[1], found[2] or ""
    value = "wrong" if key else _value(found[3] or "", raw)
    place = ".".join(filter(None, (within, found[3])))
    if what.startswith("Object "):
        name = text_of(f"{place}.{what.partition('`')[2][:MAX_VALUE].rstrip('`')}".strip("."))
        return f"{name} is missing" if "missing" in what else f"{name} is unknown; allowed: {LISTED}"
    kept = re.match(r"Expected (.*?)(, got .*)?$", what)
    allowed = re.sub(r"`|\w+", lambda word: WORDS.get(word[0], word[0].strip("`")), kept[1]) if kept else LISTED
    return f"{'a key of ' if key else ''}{place or 'the body'} is {value}; allowed: {allowed.replace(' |', ' or')}"


def _value(place: str, raw: bytes | msgspec.Raw) -> str:
    """The value at a path like `prompt[0].name`, for an error message."""
    if memoryview(raw).nbytes > SEARCHED or "[...]" in place:
        return "wrong"
    try:
        value = msgspec.json.decode(raw)
        for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
            value = value[int(index)] if index else value[name]
        return shown(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return "wrong"


class Application(FastAPI):
    """An application whose OpenAPI description includes the given bodies. close: releases its resources."""

    def __init__(self, bodies: tuple[type[msgspec.Struct], ...], close: Callable[[], None]) -> None:
        super().__init__(title="specmatrix", version=__version__, docs_url=None, redoc_url=None)
        self._bodies, self.close = bodies, close

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        if self.openapi_schema is None:
            _, described = msgspec.json.schema_components(self._bodies, ref_template=REFERENCE)
            super().openapi()["components"]["schemas"] |= described
        return super().openapi()


def takes(kind: type[msgspec.Struct], **more: object) -> dict[str, Any]:
    """OpenAPI description of a route's body. more: further members of its schema."""
    schema = {"$ref": REFERENCE.format(name=kind.__name__), **more}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class Refused(RequestError):
    """A request refused for a reason other than its values. status: of HTTP; 499, a client that left, is for logs."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status: Final = status


# OpenAI's type of an error by its status; "invalid_request_error" for others.
TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class OpenAIError(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class OpenAIErrorBody(BaseModel):
    """The body of an error under /v1."""

    error: OpenAIError


class NativeError(BaseModel):
    """What went wrong, in one sentence."""

    message: str


class NativeErrorBody(BaseModel):
    """The body of an error of SGLang's endpoints."""

    error: NativeError


STATUSES: Final = (400, 401, 403, 404, 405, 408, 413, 429, 500, 503)


def documented(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Error responses for the OpenAPI description of a route."""
    # FastAPI adds its own 422 to routes with a body, unless it is listed here.
    return {status: {"model": body} for status in (*STATUSES, 422)}


def status_of(error: EngineError) -> tuple[int, str]:
    """HTTP status and OpenAI error type of an error."""
    if not isinstance(error, RequestError):
        return 500, "server_error"
    status = error.status if isinstance(error, Refused) else 400
    return status, TYPES.get(status, "invalid_request_error")


def body_of(path: str, message: str, status: int, kind: str) -> dict[str, Any]:
    """The body of an error, in the shape of the path's API."""
    if path.startswith("/v1"):
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return {"error": {"message": message}}


def answer(path: str, error: EngineError) -> JSONResponse:
    """The response for an error."""
    status, kind = status_of(error)
    headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse(body_of(path, str(error), status, kind), status, headers)


def install(app: FastAPI) -> None:
    """Answer every error of the application in the shape of its API."""

    @app.exception_handler(EngineError)
    async def refused(request: Request, error: EngineError) -> JSONResponse:
        return answer(request.url.path, error)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path
        text = f"{request.method} {text_of(path[:MAX_VALUE])}: {error.detail}"
        body = body_of(path, text, error.status_code, "invalid_request_error")
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        text = "the server failed; its log has the cause"
        return JSONResponse(body_of(request.url.path, text, 500, "server_error"), 500)


# Limits of one request.
PROMPTS: Final = 4096
COMPLETIONS: Final = 128  # per prompt
STOPS: Final = 64  # stop strings, and as many stop tokens
STOP_CHARACTERS: Final = 256
BIASES: Final = 4096
BAD_WORDS: Final = 256
BAD_WORD_TOKENS: Final = 32
ALLOWED_TOKENS: Final = 2**18
GRAMMARS: Final = 16
LOGPROB_CELLS: Final = 2**19  # positions times (1 + alternatives)
NAME_CHARACTERS: Final = 1000
MESSAGES: Final = 4096
METADATA: Final = 16
TAGS: Final = 16
TEMPLATE_SECONDS: Final = 5.0
# Limits of connections.
HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 30.0
READ_SECONDS: Final = 60.0  # without the client reading its response
READ_BYTES: Final = 8192  # per read; as one-byte chunks they block the event loop for 50 ms
SPARE_CONNECTIONS: Final = 128  # beyond --max-connections, for probes and connections without a request
# Paths of probes and scrapes, which send no key and must be answered under load, as on SGLang's server.
OPEN: Final = ("/health", "/health_generate", "/metrics")
OPEN_REQUESTS: Final = 16  # concurrently, per path
OPEN_SECONDS: Final = 60.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE: Final = ("GET", "HEAD", "OPTIONS")


@dataclass
class Slots:
    """A counter that limits concurrent requests of one kind."""

    most: int
    taken: int = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot within the context. Refused (429) if all are taken."""
        if self.taken >= self.most:
            raise Refused(429, f"too many requests: {self.taken} being served; allowed: {self.most}")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Limits:
    """ASGI middleware that applies the limits.

    key: API key that all paths but OPEN require, None for none. host: where the server listens; on a loopback address
    only loopback host names are accepted. max_bytes: per body. max_requests: concurrent requests.
    """

    def __init__(self, app: ASGIApp, key: str | None, host: str, max_bytes: int, max_requests: int) -> None:
        self.app = app
        self._key = None if key is None else key.encode()
        self._names = LOOPBACK | {host.lower()} if _is_loopback(host) else None
        self._max_bytes = max_bytes
        self._slots = Slots(max_requests)
        self._probes = {(path, keyed): Slots(OPEN_REQUESTS) for path in OPEN for keyed in (False, True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        keyed = self._key is not None and _matches(headers.get(b"authorization", b""), self._key)
        probe = self._probes.get((scope["path"], keyed))
        try:
            self._check(scope, headers)
            if self._key is not None and not keyed and probe is None:
                raise Refused(401, "the key is missing or wrong; send the header Authorization: Bearer KEY")
            if probe is not None and b"transfer-encoding" in headers:
                raise Refused(400, "a probe has a body in chunks; allowed: none")
            with (probe or self._slots).one():
                if probe is None:
                    scope.setdefault("state", {})["admitted"] = True  # the connection is not closed for others
                    receive = _replayed(await self._body(headers, receive), receive)
                async with asyncio.timeout(OPEN_SECONDS) if probe else nullcontext():
                    await self.app(scope, receive, send)
        except Refused as error:
            await answer(scope["path"], error)(scope, receive, send)
        except TimeoutError:
            if probe is None:
                raise
            await answer(scope["path"], Refused(503, f"no answer within {OPEN_SECONDS:g} s"))(scope, receive, send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse (403) a browser's cross-site request, or a host name that is not allowed (DNS rebinding)."""
        host = headers.get(b"host", b"localhost").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._names is not None and name.strip("[]").lower() not in self._names:
            names = ", ".join(sorted(self._names))
            raise Refused(403, f"Host is {shown(name)}; allowed: {names}, or any name with --host 0.0.0.0")
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site", b"none").decode("latin-1")
        foreign = origin.rpartition("//")[2] not in ("", host) or site in ("cross-site", "same-site")
        if self._key is None and foreign and scope["method"] not in SAFE:
            raise Refused(403, f"Origin is {shown(origin)}; allowed: the server's own, or any with --api-key")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> Message:
        """Read the whole body as one message. Raises Refused if it is too large or does not arrive."""
        allowed = f"allowed: {self._max_bytes:,} (--max-body-bytes)"
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise Refused(413, f"the body has {int(declared):,} bytes; {allowed}")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_bytes:
                        raise Refused(413, f"the body has more than {self._max_bytes:,} bytes; {allowed}")
                    if not message.get("more_body", False):
                        return {"type": "http.request", "body": b"".join(parts), "more_body": False}
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        raise Refused(499, "the client left before its body was complete")


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(header: bytes, key: bytes) -> bool:
    """Compare the key in a header in constant time."""
    scheme, _, given = header.partition(b" ")
    return hmac.compare_digest(given.strip(), key) and scheme.lower() == b"bearer"


def _replayed(first: Message, receive: Receive) -> Receive:
    """A `receive` that returns `first` before further messages."""
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
