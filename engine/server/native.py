"""SGLang's native endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from msgspec import Meta, Raw

from specmatrix import __version__
from specmatrix.engine.api import Output, Prompt
from specmatrix.engine.core.config.asked import Resolved
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.server import limits, responses
from specmatrix.engine.server.engine_thread import EngineThread, SessionTurn, Submission, Ticket, failure
from specmatrix.engine.server.limits import REFERENCE, JsonBody, Refused, absent, body_of, decoded, read, takes
from specmatrix.engine.server.responses import DONE, built, event, finished, json_answer, merged, number, unless_gone
from specmatrix.engine.server.sampling import Ids, NativeSampling, engine_params, prompts_of, refuse
from specmatrix.errors import RequestError

EACH: Final = Meta(max_length=limits.PROMPTS)
Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARACTERS)]
Flags = bool | Annotated[list[bool], EACH]
Integers = int | Annotated[list[int], EACH]
# Keys of /server_info that have the same name as SGLang's flag: from the configuration, and from the running engine.
RESOLVED: Final = ("model_path", "spec_version", "max_total_tokens", "random_seed")
RUNNING: Final = (
    *("page_size", "context_length", "max_running_requests", "enable_mixed_chunk", "enable_streaming_session"),
    *("dtype", "device", "tp_size"),
)
PROBE: Final = SamplingParams(max_new_tokens=1)


# Decoded after their number is checked, because each is much larger in memory than as JSON.
Samplings = Annotated[
    list[Raw], EACH, Meta(extra_json_schema={"items": {"$ref": REFERENCE.format(name="NativeSampling")}})
]


class SessionField(JsonBody):
    """SGLang's session_params."""

    id: Name
    rid: Name | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class GenerateBody(JsonBody):
    """The body of /generate; lists make a batch."""

    text: str | Annotated[list[str], EACH] | None = None
    input_ids: Ids | None = None
    sampling_params: NativeSampling | Samplings | None = None
    rid: Name | Annotated[list[Name], EACH] | None = None
    stream: bool = False
    return_logprob: Flags | None = None
    logprob_start_len: Integers | None = None
    top_logprobs_num: Integers | None = None
    return_text_in_logprobs: bool = False
    session_params: SessionField | Annotated[list[SessionField], EACH] | None = None
    log_metrics: bool = True
    input_embeds: Raw = absent()
    image_data: Raw = absent()
    audio_data: Raw = absent()
    video_data: Raw = absent()
    lora_path: Raw = absent()
    token_ids_logprob: Raw = absent()

    def prompts(self) -> tuple[list[Prompt], bool]:
        """The prompts, and whether they are a batch. RequestError unless there is text or token ids, not both."""
        given = [(name, value) for name in ("text", "input_ids") if (value := getattr(self, name)) is not None]
        if len(given) != 1:
            raise RequestError("text and input_ids: exactly one of them must be given")
        return prompts_of(*given[0])

    def decode(self, engine: EngineThread) -> Callable[[int], str | None] | None:
        """The function that gives a token's text in log-probabilities; None if these are not requested."""
        if not (any(self.return_logprob) if isinstance(self.return_logprob, list) else self.return_logprob):
            return None
        return engine.token_text if self.return_text_in_logprobs else lambda _: None

    def asks(self, engine: EngineThread) -> list[Submission]:
        """One submission per completion, in the order of the prompts."""
        prompts, batch = self.prompts()
        refuse(self)
        count, asks = len(prompts), list[Submission]()
        samplings = _each("sampling_params", self.sampling_params, count, batch, NativeSampling())
        names = _each("rid", self.rid, count, batch, None)
        turns = _each("session_params", self.session_params, count, batch, None)
        scored = _each("return_logprob", self.return_logprob, count, batch, False)
        starts = _each("logprob_start_len", self.logprob_start_len, count, batch, -1)
        tops = _each("top_logprobs_num", self.top_logprobs_num, count, batch, 0)
        if isinstance(self.sampling_params, list):
            where = "sampling_params[{}]"
            samplings = [decoded(raw, NativeSampling, where.format(i)) for i, raw in enumerate(samplings)]
        engine.check_room(sum(sampling.n for sampling in samplings))
        seed = engine.resolved.random_seed
        for i, prompt in enumerate(prompts):
            params = _params(samplings[i], scored[i], starts[i], tops[i])
            if params.n > 1 and turns[i] is not None:
                raise RequestError(f"n is {params.n}; allowed: 1 for a session's turn")
            drops = samplings[i].max_new_tokens == 0
            for place, one in enumerate(params.completions(seed)):
                name = None if names[i] is None else names[i] if params.n == 1 else f"{names[i]}-{place}"
                asks.append(Submission(prompt, one, name, _turn(turns[i]), self.stream, drops))
        return asks


def _each(name: str, value: Any, count: int, batch: bool, default: Any) -> list[Any]:  # noqa: ANN401 - of any member
    """Broadcast a member's value to all prompts. RequestError if it is a list of another length."""
    if value is None:
        return [default] * count
    if not isinstance(value, list):
        return [value] * count
    if not batch or len(value) != count:
        raise RequestError(f"{name}: values {len(value)}, prompts {count}; allowed: one value, or one per prompt")
    return value


def _params(asked: NativeSampling, scored: bool, start: int, top: int) -> SamplingParams:
    refuse(asked)
    most = 128 if asked.max_new_tokens is None else asked.max_new_tokens
    return engine_params(
        asked,
        # 0 computes only the prompt: one token is generated but not returned.
        max_new_tokens=max(1, most),
        min_new_tokens=asked.min_new_tokens,
        seed=asked.sampling_seed,
        logprobs=scored,
        top_logprobs=top if scored else 0,
        first_scored=start if scored else -1,
    )


def _turn(given: SessionField | None) -> SessionTurn | None:
    if given is None:
        return None
    return SessionTurn(given.id, given.rid, given.offset or 0, bool(given.replace), bool(given.drop_previous_output))


def meta_info(ticket: Ticket, output: Output, decode: Callable[[int], str | None] | None) -> dict[str, Any]:
    """SGLang's meta_info. decode: returns a token's text; None omits log-probabilities."""
    finish = output.finish
    reason: dict[str, Any] = {"type": finish.reason}
    if finish.reason == "length":
        reason["length"] = len(output.output_ids)
    elif finish.reason == "stop":
        reason["matched"] = finish.matched
    elif finish.reason == "abort":
        reason["message"] = "the request was aborted"
    elif finish.message is not None:
        reason["message"] = finish.message
    found = {
        **output.meta_info,
        "id": ticket.name,
        "finish_reason": reason,
        "total_retractions": output.retractions,
        "weight_version": "default",
        "e2e_latency": ticket.ended - ticket.began,
    }
    if decode is not None:
        first = max(0, ticket.request.params.logprob_start_len)
        prompt = ticket.request.prompt[first:]
        found |= {
            "input_token_logprobs": _scores(output.prompt_logprobs, prompt, decode),
            "output_token_logprobs": _scores(output.logprobs, output.output_ids, decode),
        }
        if ticket.request.params.top_logprobs_num:
            found |= {
                "input_top_logprobs": [_tops(top, decode) or None for top in output.prompt_top_logprobs],
                "output_top_logprobs": [_tops(top, decode) for top in output.top_logprobs],
            }
    return found


def _scores(
    values: Sequence[float | None], tokens: Sequence[int], decode: Callable[[int], str | None]
) -> list[list[Any]]:
    return [[number(value), token, decode(token)] for value, token in zip(values, tokens, strict=False)]


def _tops(pairs: Sequence[tuple[int, float]], decode: Callable[[int], str | None]) -> list[list[Any]]:
    return [[number(value), token, decode(token)] for token, value in pairs]


def native_router(engine: EngineThread, model: str) -> APIRouter:
    """The router of these endpoints. model: the model's path."""
    router = APIRouter(responses=limits.documented(limits.NativeErrorBody))

    def whole(body: GenerateBody, ticket: Ticket, output: Output, ask: Submission) -> dict[str, Any]:
        info = meta_info(ticket, output, body.decode(engine))
        if (error := failure(output)) is not None:
            raise error
        if ask.drops:
            scores = ("output_token_logprobs", "output_top_logprobs")
            info |= {"completion_tokens": 0, **{name: [] for name in scores if name in info}}
            if output.finish.reason != "abort":
                info["finish_reason"] = {"type": "length", "length": 0}  # the dropped token may have been a stop token
            return {"text": "", "output_ids": [], "meta_info": info}
        return {"text": output.text, "output_ids": [*output.output_ids], "meta_info": info}

    async def events(
        body: GenerateBody, asks: list[Submission], tickets: list[Ticket], batch: bool
    ) -> AsyncIterator[bytes]:
        async for index in merged(tickets):
            ticket = tickets[index]
            place = {"index": index} if batch else {}
            if ticket.output is not None:
                if (error := failure(ticket.output)) is not None:
                    yield event(body_of("/generate", str(error), 500, ""))
                    continue
                last = await built(partial(whole, body, ticket, ticket.output, asks[index]))
                yield await built(partial(event, last | place))
            elif not asks[index].drops:
                count = ticket.tokens
                info = {
                    "id": ticket.name,
                    "finish_reason": None,
                    "prompt_tokens": len(ticket.request.prompt),
                    "completion_tokens": count,
                    "cached_tokens": ticket.request.cached_tokens,
                }
                shown = {"text": ticket.text, "output_ids": ticket.request.output[:count], "meta_info": info}
                yield event(shown | place)
        yield DONE

    @router.post("/generate", response_model=None, responses=responses.STREAMED, openapi_extra=takes(GenerateBody))
    async def generate(http: Request) -> Response:
        """Complete a prompt or a batch of prompts."""
        body = await read(http, GenerateBody)
        asks = body.asks(engine)
        batch = body.prompts()[1] or len(asks) > 1
        tickets = await unless_gone(http, engine.submit(asks))
        if body.stream:
            return responses.EventStream(engine, tickets, events(body, asks, tickets, batch))
        each = [*zip(tickets, await finished(http, engine, tickets), asks, strict=True)]
        return await json_answer(lambda: [whole(body, *one) for one in each] if batch else whole(body, *each[0]))

    _control_routes(router, engine)
    _state_routes(router, engine, model)
    return router


class AbortBody(JsonBody):
    """Which requests to stop."""

    rid: Name | None = None
    abort_all: bool = False


class OpenBody(JsonBody):
    """The body of /open_session."""

    capacity_of_str_len: Annotated[int, Meta(ge=1)]
    session_id: Name | None = None
    streaming: bool | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None


class CloseBody(JsonBody):
    """The body of /close_session."""

    session_id: Name


class TagsBody(JsonBody):
    """The tags of the memory to release or resume: all of them, or null for all."""

    tags: Annotated[list[Name], Meta(max_length=limits.TAGS)] | None = None


class WeightsBody(JsonBody):
    """The body of /update_weights_from_disk; the cache is always emptied, and a busy engine keeps its weights."""

    model_path: Name
    flush_cache: bool = True
    abort_all_requests: bool = False


NATIVE_BODIES: Final = (GenerateBody, AbortBody, OpenBody, CloseBody, TagsBody, WeightsBody)


def _control_routes(router: APIRouter, engine: EngineThread) -> None:
    # Used only in the description; the route reports the error itself.
    either = [
        {"required": ["rid"], "properties": {"rid": {"type": "string"}}},
        {"required": ["abort_all"], "properties": {"abort_all": {"const": True}}},
    ]

    @router.post("/abort_request", openapi_extra=takes(AbortBody, anyOf=either))
    async def abort_request(http: Request) -> dict[str, int]:
        """Stop one request, or all; each answers with what it has. Unknown ids, which may have ended, are no error."""
        body = await read(http, AbortBody)
        if body.rid is None and not body.abort_all:
            raise RequestError("rid and abort_all: one of them must be given")
        found = [*engine.open.values()] if body.abort_all else [t for t in [engine.open.get(body.rid or "")] if t]
        engine.abort(found)
        return {"aborted": len(found)}

    @router.post("/flush_cache")
    async def flush_cache() -> dict[str, int]:
        """Empty the prefix cache; refused while requests are open."""
        return {"freed_pages": await engine.flush_cache()}

    @router.post("/release_memory_occupation", openapi_extra=takes(TagsBody))
    async def release_memory_occupation(http: Request) -> None:
        """Free weights, KV and graphs of an idle engine; requests are refused until they are resumed."""
        body = await read(http, TagsBody)
        await engine.call(lambda llm: llm.release_memory_occupation(body.tags))

    @router.post("/resume_memory_occupation", openapi_extra=takes(TagsBody))
    async def resume_memory_occupation(http: Request) -> None:
        """Load the weights again and allocate what was freed."""
        body = await read(http, TagsBody)
        await engine.call(lambda llm: llm.resume_memory_occupation(body.tags))

    @router.post("/update_weights_from_disk", openapi_extra=takes(WeightsBody))
    async def update_weights_from_disk(http: Request) -> dict[str, Any]:
        """Load other weights of the same shape; what cannot run leaves the engine as it is."""
        body = await read(http, WeightsBody)
        if not body.flush_cache or body.abort_all_requests:
            raise RequestError("flush_cache and abort_all_requests; allowed: true and false")
        await engine.update_weights(body.model_path)
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    @router.post("/open_session", openapi_extra=takes(OpenBody))
    async def open_session(http: Request) -> str:
        """Open a session; the answer is its id."""
        body = await read(http, OpenBody)
        return await engine.open_session(body.capacity_of_str_len, body.session_id, bool(body.streaming), body.timeout)

    @router.post("/close_session", openapi_extra=takes(CloseBody))
    async def close_session(http: Request) -> None:
        """Close a session."""
        body = await read(http, CloseBody)
        await engine.close_session(body.session_id)


def _state_routes(router: APIRouter, engine: EngineThread, model: str) -> None:
    def check() -> None:
        if engine.stopping:
            raise Refused(503, "the server is shutting down")
        if engine.health != "ok":
            raise Refused(503, f"the engine accepts no more requests: {engine.health}")

    @router.get("/health")
    async def health() -> None:
        """Whether the server runs and its engine works; also while its memory is released, as on SGLang's server."""
        check()

    one_probe = asyncio.Lock()  # concurrent probes share one place in the queue

    @router.get("/health_generate")
    async def health_generate(http: Request) -> None:
        """Whether a request of one token is answered."""
        check()
        asked = Submission((min(engine.tokenizer.eos_ids, default=0),), replace(PROBE), f"HEALTH_CHECK_{uuid4().hex}")
        async with one_probe:
            (output,) = await finished(http, engine, await engine.submit([asked]))
        if (error := failure(output)) is not None:
            raise error

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        """The model that is served."""
        return {
            "model_path": engine.resolved.model_path,
            "tokenizer_path": model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
        }

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        """The running configuration under SGLang's flag names, and what the engine has done."""
        return running_flags(engine.resolved, await engine.state(), engine.max_queued)


def running_flags(resolved: Resolved, state: Mapping[str, Any], max_queued: int) -> dict[str, Any]:
    """The running configuration under SGLang's flag names. state: from EngineThread.state. max_queued: its limit."""
    running = state["readback"]
    drafts = running["algorithm"] != "NONE"
    return {
        "version": __version__,
        **{name: getattr(resolved, name) for name in RESOLVED},
        **{name: running[name] for name in RUNNING},
        "speculative_algorithm": running["algorithm"] if drafts else None,
        "speculative_draft_model_path": resolved.draft_path,
        "speculative_num_steps": running["num_steps"] if drafts else None,
        "speculative_eagle_topk": running["topk"] if drafts else None,
        "speculative_num_draft_tokens": running["num_draft_tokens"] if drafts else None,
        "speculative_adaptive": bool(running["adaptive_slots"]),
        "disable_overlap_schedule": resolved.spec_version == "v1",
        "disable_radix_cache": not running["radix_cache"],
        "mamba_track_interval": running["state_interval"],
        "chunked_prefill_size": running["chunked_prefill_size"] or -1,
        "max_queued_requests": max_queued,
        "max_total_num_tokens": running["num_pages"] * running["page_size"],
        "internal_states": [
            {
                "kv_pages": state["pages"],
                "num_running_reqs": state["running"],
                "num_queue_reqs": state["queued"],
                "num_sessions": state["sessions"],
                "counters": state["counters"],
            }
        ],
    }
