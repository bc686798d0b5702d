"""The bodies of OpenAI's endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw

from specmatrix.engine.server import limits
from specmatrix.engine.server.limits import JsonBody, absent
from specmatrix.engine.server.sampling import Common, Prompts
from specmatrix.errors import RequestError

MAX_LOGPROBS: Final = 100
Count = Annotated[int, Meta(ge=1)]
Scores = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]


class StreamOptions(JsonBody):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class JsonSchemaFormat(JsonBody):
    """OpenAI's named schema; `strict` changes nothing, as every answer is exact."""

    schema: dict[str, Any] | bool
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(JsonBody):
    """OpenAI's response format, and SGLang's with a structural tag, in xgrammar's form or the older one."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = "text"
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None

    def grammar(self) -> dict[str, str]:
        """The grammar as a member of SamplingParams. RequestError unless exactly what the type needs is given."""
        members = ("json_schema", "format", "structures", "triggers")
        due = {"json_schema": ["json_schema"], "structural_tag": ["format", "structures and triggers"]}
        allowed = due.get(self.type, ["no other member"])
        given = {name: member for name in members if (member := getattr(self, name)) is not None}
        if (found := " and ".join(given) or "no other member") not in allowed:
            raise RequestError(f"response_format of type {self.type!r} has {found}; allowed: {', or '.join(allowed)}")
        if self.json_schema is not None:
            return {"json_schema": msgspec.json.encode(self.json_schema.schema).decode()}
        if given:
            return {"structural_tag": msgspec.json.encode({"type": self.type, **given}).decode()}
        return {"json_schema": '{"type":"object"}'} if self.type == "json_object" else {}


class OpenAICommon(Common, kw_only=True):
    """Members shared by both bodies, with extensions of SGLang and vLLM."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    min_tokens: int = 0
    rid: Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARACTERS)] | None = None
    return_spec_tokens_details: bool = False
    user: str | None = None
    safety_identifier: str | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(OpenAICommon, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | Prompts
    max_tokens: Count | None = 16
    logprobs: Scores | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: Raw = absent()


class TextPart(JsonBody):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(JsonBody):
    """A message of a chat."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | Annotated[list[TextPart], Meta(max_length=limits.MESSAGES)] | None = None
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """Convert to the form that chat templates expect."""
        parts = self.content
        text = "\n".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
        return {"role": self.role, "content": text} | ({} if self.name is None else {"name": self.name})


class ChatBody(OpenAICommon, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=limits.MESSAGES)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Scores | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=limits.METADATA)] | None = None
    store: bool | None = None
    tools: Raw = absent()
    functions: Raw = absent()
    function_call: Raw = absent()
    audio: Raw = absent()
    prediction: Raw = absent()
    web_search_options: Raw = absent()


OPENAI_BODIES: Final = (CompletionBody, ChatBody)
