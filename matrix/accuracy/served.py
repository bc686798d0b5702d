"""A server as an lm-eval model, through lm-eval's client of OpenAI's completions. Import it as `model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import ClientError, ClientResponseError
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from specmatrix.errors import ConfigError
from specmatrix.matrix.accuracy.compared import ComparedServer
from specmatrix.matrix.accuracy.generation import Answered
from specmatrix.matrix.accuracy.model import TaskModel, Tick
from specmatrix.matrix.subjects.http.connection import Connection
from specmatrix.matrix.subjects.http.openai import totals

# Maximum concurrent requests, as with the published pairs.
AT_ONCE: Final = 32
SECONDS: Final = 600


class Choice(str):
    """The text of an answer, with its finish reason and token count."""

    finish = ""
    tokens = 0


class Client(LocalCompletionsAPI):  # type: ignore[misc]  # lm-eval ships no types, so its class is Any
    """lm-eval's client, extended to keep an answer's metadata and to stop at the first error.

    tick: called with 1 for each answer. failure: the first error, None if there was none.
    """

    tick: Tick
    failure: Exception | None = None

    async def amodel_call(self, *args: object, **kwargs: object) -> list[str] | None:
        """The answer to a request, empty after an error: asyncio would report every further error as unretrieved."""
        if self.failure is None:
            try:
                answers: list[str] | None = await super().amodel_call(*args, **kwargs)
                return answers
            except (ClientError, TimeoutError, KeyError, TypeError, ValueError) as error:
                self.failure = self.failure or error
        return [Choice()]

    def parse_generations(self, outputs: Any, **kwargs: Any) -> list[str]:  # noqa: ANN401 - as the server answers
        """The answer in a response to a single prompt."""
        [choice] = outputs["choices"]
        text = Choice(choice["text"])
        text.finish = str(choice.get("finish_reason") or "")
        text.tokens = int((outputs.get("usage") or {}).get("completion_tokens") or 0)
        self.tick(1)
        return [text]


class ServedModel(TaskModel):
    """A running server. ConfigError if it does not answer with status 200."""

    def __init__(self, server: ComparedServer, tick: Tick) -> None:
        super().__init__()
        self._server = server
        self._before = self._drafts()
        headers = {} if server.key is None else {"Authorization": f"Bearer {server.key}"}
        self._client = Client(
            model=server.model,
            base_url=f"{server.url}/v1/completions",
            tokenizer_backend=None,
            tokenized_requests=False,
            num_concurrent=AT_ONCE,
            # A second attempt would hide an error of the server.
            max_retries=1,
            timeout=SECONDS,
            header=headers or {"Accept": "application/json"},
        )
        self._client.tick = tick

    @property
    def evidence(self) -> Mapping[str, int]:
        now = self._drafts()
        return {name: now[name] - before for name, before in self._before.items() if name in now}

    @property
    def resolved(self) -> Mapping[str, Any]:
        return self._server.running

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order."""
        url, texts = self._server.url, self._client.generate_until(requests)
        if isinstance(error := self._client.failure, ClientResponseError):
            raise ConfigError(f"{url} answers a request with status {error.status}, {error.message}; see its log")
        if error is not None:
            raise ConfigError(f"{url} does not answer as OpenAI's completions do: {error!r:.200}")
        self.answered = [Answered(str(text), text.finish == "length", text.tokens) for text in texts]
        return [answer.text for answer in self.answered]

    def _drafts(self) -> dict[str, int]:
        """The draft counters that the server exposes."""
        with Connection(self._server.url, self._server.key) as connection:
            return totals(connection.text("/metrics"))
