"""Errors with their HTTP status, and error bodies: OpenAI's format under /v1, SGLang's elsewhere."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from specmatrix.errors import MAX_VALUE, EngineError, RequestError, text_of


class Refused(RequestError):
    """A request refused for a reason other than its values. status, kind: HTTP status and OpenAI error type."""

    status = 400
    kind = "invalid_request_error"


class Busy(Refused):
    """Too many requests, connections or sessions."""

    status, kind = 429, "rate_limit_error"


class Stopping(Refused):
    """The server is shutting down, or its engine does not answer."""

    status, kind = 503, "service_unavailable"


class TooLarge(Refused):
    """The body has too many bytes."""

    status = 413


class TooSlow(Refused):
    """The body did not arrive in time."""

    status = 408


class Disconnected(Refused):
    """The client disconnected, so the answer is not read; the status is for logs only."""

    status = 499


class Unauthorized(Refused):
    """No key, or a wrong one."""

    status, kind = 401, "authentication_error"


class Forbidden(Refused):
    """A cross-site request from a browser, or a host name that is not allowed."""

    status, kind = 403, "permission_error"


class NoSuchModel(Refused):
    """The requested model is not the served one."""

    status = 404


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
    if isinstance(error, Refused):
        return error.status, error.kind
    return (400, "invalid_request_error") if isinstance(error, RequestError) else (500, "server_error")


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
