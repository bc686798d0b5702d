"""The process that renders a checkpoint's chat template, which is untrusted code."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specmatrix.errors import described

MAX_BYTES: Final = 2**29
MAX_CHARACTERS: Final = 2**24


def serve(template: str, tokens: Mapping[str, str], connection: Connection[Any, Any]) -> None:
    """Render each received list of messages and send (success, text or error).

    The first answer, sent before any messages are received, tells whether the template compiles.
    """
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    # The template can access only the messages and special tokens.
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.globals["raise_exception"] = _raise
    try:
        compiled = sandbox.from_string(template)
    except Exception as error:
        return connection.send((False, described(error)))
    connection.send((True, ""))
    while True:
        try:
            messages = connection.recv()
        except EOFError:
            return None
        try:
            text = compiled.render(messages=messages, add_generation_prompt=True, **tokens)
            if len(text) > MAX_CHARACTERS:
                raise TemplateError(f"it makes {len(text)} characters of them; allowed: {MAX_CHARACTERS}")
            answer = True, text
        except Exception as error:  # raised by the template
            answer = False, described(error)
        connection.send(answer)


def _raise(message: str) -> None:
    raise TemplateError(message)
