"""Decodes request bodies directly into types with bounded sizes, up to the first error, within milliseconds."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from fastapi import FastAPI, Request

from specmatrix import __version__
from specmatrix.errors import MAX_VALUE, RequestError, shown, text_of

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
