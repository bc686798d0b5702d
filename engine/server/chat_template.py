"""A checkpoint's chat template: messages to the text of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specmatrix.engine.models.config_reader import read_json
from specmatrix.errors import ConfigError, RequestError, described
from specmatrix.files import read_text

FILE: Final = "chat_template.jinja"
TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """The template of `chat_template.jinja` or `tokenizer_config.json`; without one, every use is refused.

    ConfigError if the checkpoint's files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        text = settings.get("chat_template")
        if (folder / FILE).is_file():
            text = read_text(folder / FILE)
        elif isinstance(text, list):  # several by name
            named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
            text = named.get("default")
        self._tokens = {name: _content(settings.get(name)) for name in TOKENS}
        self._template = None
        if isinstance(text, str):
            # A template is a program of the checkpoint's author: it sees messages and tokens, nothing else.
            sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
            sandbox.globals["raise_exception"] = _raise
            try:
                self._template = sandbox.from_string(text)
            except TemplateError as error:
                raise ConfigError(f"the chat template of {folder} cannot be read ({described(error)})") from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that asks for the assistant's next message. RequestError without a template, or if it refuses."""
        if self._template is None:
            raise RequestError(
                "this checkpoint has no chat template (neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json); use /v1/completions"
            )
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except Exception as error:  # the template's own
            raise RequestError(f"the chat template refuses the messages ({described(error)})") from None


def _content(token: object) -> str:
    """A special token's text; files hold it alone or within an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _raise(message: str) -> None:
    raise TemplateError(message)
