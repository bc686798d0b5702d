"""A checkpoint's chat template, which turns messages into a prompt text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import finalize

from specmatrix.child_process import start
from specmatrix.engine.models.config_reader import read_json
from specmatrix.engine.server import chat_renderer, limits
from specmatrix.engine.server.limits import Refused
from specmatrix.errors import ConfigError, RequestError
from specmatrix.files import read_text

FILE: Final = "chat_template.jinja"
TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """The template from `chat_template.jinja` or `tokenizer_config.json`; without one, `render` raises RequestError.

    A separate process with a memory limit renders it, and is replaced when it takes too long. Thread-safe.
    ConfigError if the checkpoint's files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        text = settings.get("chat_template")
        if (folder / FILE).is_file():
            text = read_text(folder / FILE)
        elif isinstance(text, list):  # several named templates
            named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
            text = named.get("default")
        self._text = text if isinstance(text, str) else None
        self._tokens = {name: _content(settings.get(name)) for name in TOKENS}
        self._lock = Lock()
        self._connection: Connection[Any, Any] | None = None
        if self._text is not None:
            good, why = self._started()
            if not good:
                raise ConfigError(f"the chat template of {folder} cannot be read ({why})")

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render the prompt for the assistant's next message. RequestError without a template, or if rendering fails;
        Refused (429) if other requests keep the process occupied for too long."""
        if self._text is None:
            raise RequestError(
                "this checkpoint has no chat template (neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json); use /v1/completions"
            )
        if not self._lock.acquire(timeout=limits.TEMPLATE_SECONDS):
            raise Refused(429, "the chat template is being rendered for other requests")
        try:
            good, text = self._started() if self._connection is None else (True, "")
            if good:
                good, text = self._answer(list(messages))
        finally:
            self._lock.release()
        if not good:
            raise RequestError(f"the chat template refuses the messages ({text})")
        return text

    def _started(self) -> tuple[bool, str]:
        """Start the process. Returns whether it compiled the template, and the error if not."""
        process, self._connection = start(chat_renderer.serve, self._text, self._tokens)
        self._end = finalize(self, process.stop)
        return self._answer()

    def _answer(self, *messages: Any) -> tuple[bool, str]:  # noqa: ANN401 - at most one list of messages
        """Receive the process's answer; stop the process if there is none in time."""
        assert self._connection is not None
        try:
            for one in messages:
                self._connection.send(one)
            if self._connection.poll(limits.TEMPLATE_SECONDS):
                answer: tuple[bool, str] = self._connection.recv()
                return answer
            why = f"no answer within {limits.TEMPLATE_SECONDS:g} s"
        except (EOFError, OSError):
            why = "its process ended, maybe for want of memory"
        self._stop()
        return False, why

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._end()


def _content(token: object) -> str:
    """The text of a special token, stored in the files as a string or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
