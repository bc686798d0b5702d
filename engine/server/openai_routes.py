"""OpenAI's endpoints: models, completions and chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from time import time
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from specmatrix.engine.api import Output, Prompt
from specmatrix.engine.server import responses
from specmatrix.engine.server.chat_template import ChatTemplate
from specmatrix.engine.server.engine_thread import EngineThread, Submission, Ticket, failure
from specmatrix.engine.server.limits import OpenAIErrorBody, Refused, body_of, documented, read, status_of, takes
from specmatrix.engine.server.openai_bodies import ChatBody, CompletionBody, OpenAICommon
from specmatrix.engine.server.responses import DONE, built, event, finished, json_answer, merged, number, unless_gone
from specmatrix.engine.server.sampling import engine_params, prompts_of, refuse
from specmatrix.errors import RequestError, shown

OWNER: Final = "specmatrix"
# Keys of SGLang's `sglext.spec_tokens_details` (sglang#33518).
SPEC_KEYS: Final = (
    "spec_accept_rate",
    "spec_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
)


@dataclass(slots=True)
class Answering:
    """One HTTP request to an OpenAI endpoint, and the format of its response.

    scored: number of alternatives, None without log-probabilities. echo: the text includes the prompt. tickets: one
    per choice, once queued. echoed: the prompts' texts, one per choice.
    """

    engine: EngineThread
    body: OpenAICommon
    model: str
    chat: bool
    scored: int | None
    echo: bool = False
    tickets: list[Ticket] = field(default_factory=list)
    echoed: Sequence[str] = ()

    async def respond(self, http: Request, prompts: Sequence[Prompt], most: int) -> Response:
        """Queue the prompts; respond when all have ended, or stream. most: maximum tokens per completion."""
        body, engine = self.body, self.engine
        engine.check_room(len(prompts) * body.n)
        params = engine_params(
            body,
            max_new_tokens=most,
            min_new_tokens=body.min_tokens,
            seed=body.seed,
            logprobs=self.scored is not None,
            top_logprobs=self.scored or 0,
            first_scored=0 if self.echo and self.scored is not None else -1,
            grammar={} if body.response_format is None else body.response_format.grammar(),
        )
        each = params.completions(engine.resolved.random_seed)
        names = [body.rid if body.rid is None or body.n == 1 else f"{body.rid}-{place}" for place in range(body.n)]
        asks = [
            Submission(prompt, one, name, streams=body.stream)
            for prompt in prompts
            for one, name in zip(each, names, strict=True)
        ]
        self.tickets += await unless_gone(http, engine.submit(asks))
        if self.echo:
            decode = engine.tokenizer.decode
            self.echoed = await built(lambda: [decode(ticket.request.prompt) for ticket in self.tickets])
        if body.stream:
            return responses.EventStream(engine, self.tickets, self.events())
        outputs = await finished(http, engine, self.tickets)
        return await json_answer(lambda: self.whole(outputs))

    @property
    def id(self) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{self.tickets[0].name}"

    def head(self, streams: bool) -> dict[str, Any]:
        """The first members of every response object."""
        kind = ("chat.completion" + ".chunk" * streams) if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": int(time()), "model": self.model}

    def text(self, index: int, text: str) -> str:
        """The text of a choice, preceded by its prompt if `echo`."""
        if not self.echo:
            return text
        return self.echoed[index] + text

    def choice(self, index: int, output: Output) -> dict[str, Any]:
        """A finished choice."""
        text = self.text(index, output.text)
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **said, "logprobs": self.logprobs(index, output), "finish_reason": output.finish.reason}

    def chunk(self, index: int, text: str, finish: str | None, scores: dict[str, Any] | None) -> dict[str, Any]:
        """A part of a streamed choice."""
        said: dict[str, Any] = {"delta": {"content": text}} if self.chat else {"text": text}
        return {**self.head(True), "choices": [{"index": index, **said, "logprobs": scores, "finish_reason": finish}]}

    def logprobs(self, index: int, output: Output) -> dict[str, Any] | None:
        """The log-probabilities of a finished choice, None if not requested."""
        if self.scored is None:
            return None
        tokens, values, tops = list(output.output_ids), [*output.logprobs], [*output.top_logprobs]
        if self.echo:
            tokens = [*self.tickets[index].request.prompt, *tokens]
            values = [*output.prompt_logprobs, *values]  # type: ignore[list-item]
            tops = [*output.prompt_top_logprobs, *tops]
        texts = [*map(self.engine.token_text, tokens)]
        return (self._chat_logprobs if self.chat else self._completion_logprobs)(texts, values, tops)

    def _completion_logprobs(
        self, texts: Sequence[str], values: Sequence[float | None], tops: Sequence[Sequence[tuple[int, float]]]
    ) -> dict[str, Any]:
        text = self.engine.token_text
        best = [{text(token): number(value) for token, value in reversed(top)} or None for top in tops]
        return {
            "tokens": texts,
            "token_logprobs": [*map(number, values)],
            "top_logprobs": best if self.scored else None,
            "text_offset": [*accumulate(map(len, texts[:-1]), initial=0)] if texts else [],
        }

    def _chat_logprobs(
        self, texts: Sequence[str], values: Sequence[float | None], tops: Sequence[Sequence[tuple[int, float]]]
    ) -> dict[str, Any]:
        def token(text: str, value: float | None) -> dict[str, Any]:
            return {"token": text, "bytes": [*text.encode()], "logprob": number(value)}

        rows = [
            {**token(text, value), "top_logprobs": [token(self.engine.token_text(i), score) for i, score in top]}
            for text, value, top in zip(texts, values, tops or [()] * len(texts), strict=True)
        ]
        return {"content": rows}

    def usage(self) -> dict[str, Any]:
        """Token counts; each prompt counts once, however many completions it has."""
        first = self.tickets[:: self.body.n]
        prompt = sum(len(ticket.request.prompt) for ticket in first)
        output = sum(one.tokens if one.output is None else len(one.output.output_ids) for one in self.tickets)
        cached = sum(ticket.request.cached_tokens for ticket in first)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def extension(self) -> dict[str, Any]:
        """SGLang's `sglext` if requested: an object for one choice, a list for several."""
        if not self.body.return_spec_tokens_details:
            return {}
        metas = [ticket.output.meta_info if ticket.output else {} for ticket in self.tickets]
        details = [{key: meta[key] for key in SPEC_KEYS if key in meta} for meta in metas]
        return {"sglext": {"spec_tokens_details": details[0] if len(details) == 1 else details}}

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """The body of a response that is not streamed. EngineError if a choice failed."""
        for output in outputs:
            if (error := failure(output)) is not None:
                raise error
        choices = [self.choice(index, output) for index, output in enumerate(outputs)]
        return {**self.head(False), "choices": choices, "usage": self.usage(), **self.extension()}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of a streamed response."""
        sent = [0] * len(self.tickets)
        options = self.body.stream_options
        if self.chat:
            for index in range(len(self.tickets)):
                first = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
                yield event({**self.head(True), "choices": [{**first, "finish_reason": None}]})
        async for index in merged(self.tickets):
            output = self.tickets[index].output
            if output is not None and (error := failure(output)) is not None:
                yield event(body_of("/v1", str(error), *status_of(error)))
                continue
            text = self.text(index, self.tickets[index].text if output is None else output.text)
            fresh, sent[index] = text[sent[index] :], max(sent[index], len(text))
            if not fresh and output is None:
                continue
            if output is None:
                yield event(self.chunk(index, fresh, None, None))
                continue
            # Sent only at the end: streamed text may lag behind the tokens, at partial characters and stop strings.
            scores = await built(partial(self.logprobs, index, output))
            chunk = self.chunk(index, fresh, output.finish.reason, scores)
            yield await built(partial(event, chunk))
        if options is not None and options.include_usage:
            yield event({**self.head(True), "choices": [], "usage": self.usage(), **self.extension()})
        elif extension := self.extension():
            yield event({**self.head(True), "choices": [], **extension})
        yield DONE


def openai_router(engine: EngineThread, model: str, template: ChatTemplate) -> APIRouter:
    """The router of these endpoints. model: the served model name."""
    router = APIRouter(prefix="/v1", responses=documented(OpenAIErrorBody))
    created = int(time())

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [card()]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """One model."""
        check(name)
        return card()

    def card() -> dict[str, Any]:
        longest = engine.resolved.context_length
        return {"id": model, "object": "model", "created": created, "owned_by": OWNER, "max_model_len": longest}

    def check(name: str) -> None:
        if name != model:
            raise Refused(404, f"model {shown(name)} is not served; allowed: {shown(model)}")

    @router.post("/completions", response_model=None, responses=responses.STREAMED, openapi_extra=takes(CompletionBody))
    async def completions(http: Request) -> Response:
        """Complete prompts."""
        body = await read(http, CompletionBody)
        check(body.model)
        refuse(body)
        if body.best_of not in (None, body.n):
            raise RequestError(f"best_of is {body.best_of}; allowed: n, {body.n}, as every completion is returned")
        prompts, _ = prompts_of("prompt", body.prompt)
        if body.rid is not None and len(prompts) > 1:
            raise RequestError(f"rid is {shown(body.rid)} for {len(prompts)} prompts; allowed: a rid for one prompt")
        answering = Answering(engine, body, model, chat=False, scored=body.logprobs, echo=body.echo)
        return await answering.respond(http, prompts, 16 if body.max_tokens is None else body.max_tokens)

    @router.post("/chat/completions", response_model=None, responses=responses.STREAMED, openapi_extra=takes(ChatBody))
    async def chat_completions(http: Request) -> Response:
        """Answer a chat with the checkpoint's own template."""
        body = await read(http, ChatBody)
        check(body.model)
        refuse(body)
        text = await asyncio.to_thread(template.render, [message.plain() for message in body.messages])
        prompt = await asyncio.to_thread(engine.prompt_ids, text)
        left = max(1, engine.resolved.context_length - len(prompt))
        most = body.max_completion_tokens or body.max_tokens or left
        scored = (body.top_logprobs or 0) if body.logprobs else None
        return await Answering(engine, body, model, chat=True, scored=scored).respond(http, [prompt], most)

    return router
