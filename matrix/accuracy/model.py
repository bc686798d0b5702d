"""An engine as lm-eval's model. Import it only after `matrix.accuracy.task.offline`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import AUTO, EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import RequestError
from specmatrix.matrix.accuracy.generation import Answered, parameters

Tick = Callable[[int], None]


class EngineModel(LM):  # type: ignore[misc]  # lm-eval ships no types, so its class is Any
    """An engine in this process, which answers all requests of a call in one batch.

    A fixed-size KV pool is resized to hold the longest request, but not two. tick: called with the number of requests
    that finished since the last call. answered: of the last call, in the order of its requests.
    """

    def __init__(self, config: EngineConfig, locate: Callable[[str], Path], tick: Tick) -> None:
        super().__init__()
        self.answered: list[Answered] = []
        self.llm = LLM(config, locate)
        self._config = config
        self._locate = locate
        self._tick = tick
        # Tokens of the fixed-size pool, 0 before the first requests; counters of the earlier engines, with smaller
        # pools.
        self._tokens, self._earlier = 0, Counter[str]()

    @property
    def evidence(self) -> Mapping[str, int]:
        """Counters since the start."""
        return dict(self._earlier + Counter(self.llm.counters))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order. RequestError if a prompt is too long or an argument is unsupported."""
        encode = self.llm.tokenizer.encode
        prompts = [tuple(encode(request.args[0])) for request in requests]
        asked = [parameters(request.args[1]) for request in requests]
        room = self.llm.resolved.context_length
        for number, (prompt, params) in enumerate(zip(prompts, asked, strict=True), 1):
            if len(prompt) + params.max_new_tokens > room:
                raise RequestError(
                    f"prompt {number} has {len(prompt)} tokens, which with {params.max_new_tokens} new ones exceed the "
                    f"context of {room}; use fewer examples per prompt or fewer new tokens"
                )
        self._fit(max(len(p) + a.max_new_tokens for p, a in zip(prompts, asked, strict=True)))
        self.answered = [
            Answered(
                output.text,
                output.finish.reason == "length",
                len(output.output_ids),
                len(output.accept_lengths),
                output.retractions,
            )
            for output in self._run(prompts, asked)
        ]
        return [answer.text for answer in self.answered]

    def _fit(self, longest: int) -> None:
        """Fit a fixed-size pool to the longest request so far."""
        if self._config.max_total_tokens == AUTO:
            return
        page = self.llm.resolved.page_size
        tokens = -(-(longest + 2 * self.llm.resolved.num_draft_tokens) // page) * page
        if tokens > self._tokens:
            self._tokens, self._earlier = tokens, self._earlier + Counter(self.llm.counters)
            self.llm = LLM(replace(self._config, max_total_tokens=tokens), self._locate)

    def _run(self, prompts: Sequence[tuple[int, ...]], asked: Sequence[SamplingParams]) -> list[Output]:
        rids = [self.llm.add(prompt, params) for prompt, params in zip(prompts, asked, strict=True)]
        scheduler = self.llm.loop.scheduler
        open_before = len(rids)
        more = True
        while more:
            more = self.llm.step()
            still_open = len(scheduler.waiting) + len(scheduler.active)
            if still_open != open_before:
                self._tick(open_before - still_open)
                open_before = still_open
        return [self.llm.take(rid) for rid in rids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """RequestError: scoring given texts is not supported."""
        raise RequestError("the task requests log-likelihoods of given texts; only generation tasks are supported")

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """RequestError, as in `loglikelihood`."""
        raise RequestError("the task requests log-likelihoods of given texts; only generation tasks are supported")
