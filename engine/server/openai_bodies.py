"""The bodies of OpenAI's endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from specmatrix.engine.api import Prompt
from specmatrix.engine.server.sampling import Common, JsonBody, TokenId
from specmatrix.errors import RequestError

# Members of bodies that ask for what this engine lacks; empty values do not.
COMPLETION_ABSENT: Final = ("suffix",)
CHAT_ABSENT: Final = ("tools", "functions", "function_call", "audio", "prediction", "web_search_options")
MAX_LOGPROBS: Final = 100


class StreamOptions(JsonBody):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class OpenAICommon(Common):
    """What both bodies share, with the extensions that SGLang and vLLM have."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    min_tokens: int = 0
    rid: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    return_spec_tokens_details: bool = False
    user: str | None = None
    safety_identifier: str | None = None


class CompletionBody(OpenAICommon):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None

    def prompts(self) -> list[Prompt]:
        """The prompts."""
        one = self.prompt
        if isinstance(one, str) or (one and isinstance(one[0], int)):
            return [one]
        if not one:
            raise RequestError("prompt is []; allowed: a text, token ids, or a list of these")
        return [*one]


class TextPart(JsonBody):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(JsonBody):
    """A message of a chat."""

    role: Annotated[str, Field(min_length=1)]
    content: str | list[TextPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates read it."""
        parts = self.content
        text = "\n".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
        return {"role": self.role, "content": text} | ({} if self.name is None else {"name": self.name})


class ResponseFormat(JsonBody):
    """Text, as this engine has no grammars."""

    type: Literal["text"] = "text"


class ChatBody(OpenAICommon):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
