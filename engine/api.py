"""The front door in process: `LLM`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.build import Locate, build
from engine.core.config import EngineConfig
from engine.core.errors import RequestError
from engine.core.finish import settled
from engine.core.ledger import Entry
from engine.core.request import Finish, Phase, Request, SamplingParams
from engine.core.resolve import resolve
from engine.models.loader import facts
from engine.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Output:
    """One finished generation. `accept_lengths` holds one number per verify round, bonus included."""

    text: str
    output_ids: tuple[int, ...]
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    retractions: int
    accept_lengths: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    meta_info: Mapping[str, Any]


class LLM:
    """An engine with its models loaded.

    `locate` turns a model name into a directory; by default the name is a path. Raises ConfigError for a
    configuration or checkpoint that cannot run.
    """

    def __init__(self, config: EngineConfig, locate: Locate = Path) -> None:
        draft = config.speculative_draft_model_path
        device = "cpu" if config.device == "auto" else config.device
        known = facts(locate(config.model_path), None if draft is None else locate(draft), device)
        self.resolved = resolve(config, known)
        self.tokenizer = Tokenizer(locate(config.model_path))
        self.loop = build(self.resolved, known, self.tokenizer, locate)
        self._next_rid = 1

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue one request and return its id. RequestError on bad parameters; nothing else is disturbed."""
        params = params or SamplingParams()
        params.validate(self.tokenizer.vocab_size)
        tokens = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
        bad = [t for t in tokens if type(t) is not int or not 0 <= t < self.tokenizer.vocab_size]
        if bad:
            raise RequestError(
                f"prompt token {bad[0]} is outside the vocabulary; allowed: [0, {self.tokenizer.vocab_size})"
            )
        rid = self._next_rid
        seed = self.resolved.random_seed if params.seed is None else params.seed
        self.loop.add(Request(rid, tokens, params, seed))
        self._next_rid += 1
        return rid

    def abort(self, rid: int) -> bool:
        """Stop a request; False if it had already ended."""
        return self.loop.abort(rid)

    def step(self) -> bool:
        """Run one turn of the loop. False when there is nothing left to do."""
        if self.loop.busy:
            self.loop.step()
        return self.loop.busy

    def request(self, rid: int) -> Request:
        """The live request, to read its progress."""
        return self.loop.scheduler.requests[rid]

    def take(self, rid: int) -> Output:
        """The result of an ended request, which is then forgotten. RequestError while it runs."""
        request = self.request(rid)
        if request.phase is not Phase.DONE or request.finish is None:
            raise RequestError(f"request {rid} is {request.phase.value}; its result exists once it is done")
        self.loop.forget(rid)
        info: dict[str, Any] = {
            "id": rid,
            "finish_reason": {"type": request.finish.reason, "matched": request.finish.matched},
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.output),
            "cached_tokens": request.cached_tokens,
            **request.metrics.meta_info(len(request.output)),
        }
        return Output(
            request.text,
            tuple(request.output),
            request.finish,
            len(request.prompt),
            request.cached_tokens,
            request.retractions,
            tuple(request.metrics.lengths),
            tuple(request.logprobs),
            tuple(map(tuple, request.top_logprobs)),
            info,
        )

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Run prompts to their end and return their outputs in order. RequestError if one is bad; then none runs."""
        if isinstance(prompts, str):
            raise RequestError("prompts is one text; allowed: a list of texts or of token lists")
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(each)} sampling parameters for {len(prompts)} prompts; allowed: one, or one each")
        rids: list[int] = []
        try:
            for prompt, p in zip(prompts, each, strict=True):
                rids.append(self.add(prompt, p))
        except RequestError:
            for rid in rids:
                self.abort(rid)
                self.loop.forget(rid)
            raise
        while self.step():
            pass
        return [self.take(rid) for rid in rids]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the new text of one request as it grows. What a stop string may still cut is held back."""
        request = self.request(self.add(prompt, params))
        shown = 0
        while request.phase is not Phase.DONE:
            self.step()
            end = len(request.text) if request.finish else settled(request.text, request.params.stop)
            if end > shown:
                yield request.text[shown:end]
                shown = end
        self.loop.forget(request.rid)

    @property
    def probes(self) -> dict[str, int]:
        """What the engine did so far, by probe name."""
        return dict(self.loop.probes.counts)

    @property
    def journal(self) -> list[Entry]:
        """Every verb of the ledger so far."""
        return list(self.loop.scheduler.ledger.journal)

    def readback(self) -> dict[str, Any]:
        """What runs, read from the running parts and not from the resolved configuration."""
        scheduler, executor = self.loop.scheduler, self.loop.executor
        drafter = executor.drafter
        return {
            "algorithm": drafter.traits.name,
            "num_steps": drafter.steps,
            "topk": max(drafter.topk, 1) if drafter.traits.drafts else 0,
            "num_draft_tokens": drafter.nodes,
            "lag": self.loop.lag,
            "page_size": scheduler.ledger.page_size,
            "num_pages": scheduler.ledger.num_pages,
            "radix_cache": scheduler.cache.enabled,
            "chunked_prefill_size": scheduler.chunk,
            "max_running_requests": scheduler.max_running,
            "context_length": scheduler.context_length,
            "dtype": str(executor.pool.data.dtype).removeprefix("torch."),
            "device": executor.pool.data.device.type,
            "strict_memory": self.loop.strict_memory,
            "kv_stamps": executor.pool.stamps is not None,
            "enable_deterministic_inference": executor.pool.deterministic,
        }
